#include "apps/plan/mesh_choice.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) all.push_back(d);
  }
  return all;
}

/// Whether each tensor group is on one node.
bool are_on_one_node(const Topology& topology, int tensor) {
  for (int r = 0; r < topology.rank_count(); ++r) {
    if (topology.node_of_rank[r] != topology.node_of_rank[r / tensor * tensor]) return false;
  }
  return true;
}

bool can_divide_tensors(const PlanOptions& o, const ModelShape& shape, int tensor) {
  if (tensor == 1) return true;
  const bool shares = tensor % shape.kv_heads == 0;
  if (!are_on_one_node(topology_of(o, false), tensor) || shape.heads % tensor != 0) return false;
  if (!shares && shape.kv_heads % tensor != 0) return false;
  try {
    check_tensor_group(shape, {.ranks = tensor, .fixed_leaves = o.engine.reproducible});
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

/// Adds the choices of one mesh after another.
class Choices {
 public:
  Choices(const PlanOptions& options, int64_t use_count, bool can_split_backward)
      : o_(options),
        shape_(model_shape(options)),
        use_count_(use_count),
        can_split_(can_split_backward),
        global_batch_(global_batch_of(options)) {}

  std::vector<MeshChoice> all;

  void add_all() {
    const auto ranks = static_cast<int>(o_.ranks);
    for (const int tensor : divisors(ranks)) {
      if (!allows("tensor", tensor, o_.engine.tensor) || !can_divide_tensors(o_, shape_, tensor)) continue;
      for (const int pipeline : divisors(ranks / tensor)) {
        if (!allows("pipeline", pipeline, o_.engine.pipeline) || pipeline > use_count_) continue;
        const int data = ranks / tensor / pipeline;
        for (const int replica : divisors(data)) {
          if (allows("replicas", replica, o_.engine.replicas))
            add({.pipeline = pipeline, .replica = replica, .shard = data / replica, .tensor = tensor});
        }
      }
    }
  }

 private:
  bool keeps(std::string_view name) const { return o_.mesh.keeps(name); }
  bool allows(std::string_view name, int value, int given) const { return !keeps(name) || value == given; }

  void add(const Mesh& mesh) {
    for (const int64_t micro_batch : micro_batches(mesh)) {
      const int64_t accumulate = global_batch_ / (micro_batch * mesh.replica * mesh.shard);
      for (const MeshChoice& order : orders(mesh)) {
        MeshChoice choice = order;
        choice.micro_batch = micro_batch;
        choice.accumulate = static_cast<int>(accumulate);
        if (keeps("recompute")) choice.recompute = o_.engine.recompute;
        add_sharding(choice);
      }
    }
  }

  /// Without shard groups, all ZeRO stages are the same.
  void add_sharding(MeshChoice choice) {
    std::vector<int> stages = {1, 2, 3};
    if (keeps("zero-stage"))
      stages = {o_.engine.zero_stage};
    else if (choice.mesh.shard == 1)
      stages = {1};
    for (const int stage : stages) {
      choice.zero_stage = stage;
      const bool open = !keeps("gather-for") && stage == 3 && choice.accumulate > 1;
      for (const int gather_for :
           open ? std::vector{kGatherForPass, kGatherForStep} : std::vector{o_.engine.gather_for}) {
        choice.gather_for = gather_for;
        all.push_back(choice);
      }
    }
  }

  /// Returns the sizes of a micro-batch, at most kMost and the part of the global batch of a rank.
  std::vector<int64_t> micro_batches(const Mesh& mesh) const {
    constexpr int64_t kMost = 16;
    const int64_t data = int64_t{mesh.replica} * mesh.shard;
    std::vector<int64_t> sizes;
    if (keeps("micro-batch")) {
      sizes = {o_.micro_batch};
    } else {
      for (int64_t size = 1; size <= kMost; size *= 2) sizes.push_back(size);
    }
    std::erase_if(sizes, [&](int64_t size) {
      const int64_t count = global_batch_ / (data * size);
      const bool contradicts = keeps("accumulate") && keeps("global-batch") && count != o_.engine.accumulate;
      return global_batch_ % (data * size) != 0 || count > kMaxMicroBatches || contradicts;
    });
    return sizes;
  }

  /// Returns choices with the orders of passes for the mesh.
  std::vector<MeshChoice> orders(const Mesh& mesh) const {
    constexpr int kMostVirtualStages = 4;
    const PipelineSchedule given = o_.engine.pipeline_schedule;
    const bool open = !keeps("pipeline-schedule") || given == PipelineSchedule::kAuto;
    const int given_stages = o_.engine.virtual_stages;
    std::vector<MeshChoice> found;
    const auto try_order = [&](PipelineSchedule schedule, int virtual_stages) {
      if (!open && schedule != given) return;
      if (given_stages > 1 && virtual_stages != given_stages) return;
      if (int64_t{mesh.pipeline} * virtual_stages > use_count_) return;
      found.push_back({.mesh = mesh, .schedule = schedule, .virtual_stages = virtual_stages});
    };
    if (mesh.pipeline == 1 && given_stages > 1) return {};
    // A given order of passes also determines the memory of a run without a pipeline.
    if (mesh.pipeline == 1) return {{.mesh = mesh, .schedule = open ? PipelineSchedule::k1F1B : given}};
    try_order(PipelineSchedule::k1F1B, 1);
    if (can_split_) try_order(PipelineSchedule::kZeroBubble, 1);
    for (int v = 2; v <= std::max(kMostVirtualStages, given_stages); ++v) try_order(PipelineSchedule::kInterleaved, v);
    if (!open) try_order(PipelineSchedule::kGpipe, 1);  // otherwise 1F1B needs less memory in the same time
    return found;
  }

  const PlanOptions& o_;
  ModelShape shape_;
  int64_t use_count_;
  bool can_split_;
  int64_t global_batch_;
};

}  // namespace

int64_t global_batch_of(const PlanOptions& o) {
  return o.global_batch.value_or(o.ranks * o.micro_batch * o.engine.accumulate);
}

PlanOptions with_choice(PlanOptions o, const MeshChoice& choice) {
  o.mesh.given = choice.mesh;
  o.mesh.automatic = false;
  EngineOptions& engine = o.engine;
  engine.pipeline = choice.mesh.pipeline;
  engine.replicas = choice.mesh.replica;
  engine.tensor = choice.mesh.tensor;
  engine.zero_stage = choice.zero_stage;
  engine.accumulate = choice.accumulate;
  engine.recompute = choice.recompute;
  engine.gather_for = choice.gather_for;
  engine.pipeline_schedule = choice.schedule;
  engine.virtual_stages = choice.virtual_stages == 1 ? 0 : choice.virtual_stages;
  o.micro_batch = choice.micro_batch;
  return o;
}

std::vector<GivenOption> options_of(const MeshChoice& choice) {
  PlanOptions values = with_choice({}, choice);
  const OptionTable table = plan_option_table(values);
  std::vector<std::string> names = {"mesh", "zero-stage", "micro-batch", "accumulate"};
  if (choice.recompute != kRecomputeAsNeeded) names.emplace_back("recompute");
  if (choice.gather_for != kGatherForAuto) names.emplace_back("gather-for");
  if (choice.mesh.pipeline > 1) names.emplace_back("pipeline-schedule");
  if (choice.virtual_stages > 1) names.emplace_back("virtual-stages");
  std::vector<GivenOption> all;
  for (const std::string& name : names) all.push_back({name, "--" + name, text_of(table.find(name)->get())});
  return all;
}

std::string options_text(const MeshChoice& choice) {
  std::string text;
  for (const GivenOption& one : options_of(choice))
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", one.where, one.value);
  return text;
}

std::vector<MeshChoice> mesh_choices(const PlanOptions& options, int64_t use_count, bool can_split_backward) {
  Choices choices(options, use_count, can_split_backward);
  choices.add_all();
  return std::move(choices.all);
}

}  // namespace aliquot
