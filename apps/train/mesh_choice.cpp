#include "apps/train/mesh_choice.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/plan/mesh_search.h"
#include "apps/train/train_settings.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/cores.h"

namespace aliquot {
namespace {

/// Returns the options that the search must keep: those of the user, those of a DeepSpeed file, and those that other
/// options require.
std::vector<std::string> kept_options(const TrainOptions& o) {
  std::vector<std::string> kept = o.mesh.kept;
  if (!o.deepspeed.empty()) {
    kept.insert(kept.end(), {"zero-stage", "recompute"});
    if (o.micro_batch > 0) kept.emplace_back("micro-batch");
    if (o.engine.accumulate > 1) kept.insert(kept.end(), {"accumulate", "global-batch"});
    if (o.engine.pipeline > 1) kept.emplace_back("pipeline");
  }
  const OptimizerKind kind = o.optimizer.kind;
  const bool needs_whole_tensors = kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdamW8bit;
  const bool rounds_slices =
      o.engine.reproducible && (o.engine.moments == DType::kBFloat16 || o.engine.quantize_weights);
  if (needs_whole_tensors || rounds_slices) kept.emplace_back("tensor");
  return kept;
}

int64_t most_ranks_of_a_node(const Topology& topology) {
  std::vector<int64_t> counts(static_cast<std::size_t>(topology.node_count()), 0);
  for (const int node : topology.node_of_rank) ++counts[static_cast<std::size_t>(node)];
  return std::ranges::max(counts);
}

/// Returns the number of threads of a rank, on which the memory of a unit depends.
int thread_count(World& world, bool on_gpu, int64_t ranks_per_node) {
  if (on_gpu) return std::max(allowed_core_count() / static_cast<int>(ranks_per_node), 1);
  return as_host_stream(*world.device().make_stream(Lane::kCompute)).pool().thread_count();
}

}  // namespace

PlanOptions plan_options(World& world, const TrainOptions& o) {
  const bool on_gpu = world.device().kind() == DeviceKind::kCuda;
  PlanOptions plan;
  static_cast<ShapeOptions&>(plan) = o;
  static_cast<CommonOptions&>(plan) = o;
  plan.mesh = o.mesh;
  plan.mesh.kept = kept_options(o);
  plan.ranks = world.rank_count();
  plan.topology = world.topology();
  plan.ranks_per_node = most_ranks_of_a_node(world.topology());
  plan.micro_batch = std::max<int64_t>(o.micro_batch, 1);
  plan.sequence = o.sequence;
  plan.products = o.products;
  plan.global_batch = o.global_batch;
  plan.machine = o.machine;
  plan.profile = o.profile;
  plan.engine.between_steps_bytes = between_steps_bytes(o);
  if (plan.world.threads_per_rank == 0) plan.world.threads_per_rank = thread_count(world, on_gpu, *plan.ranks_per_node);
  resolve_precision(plan, on_gpu);
  return plan;
}

namespace {

struct Choice {
  std::vector<GivenOption> options;
  std::string reason;
};

Choice choose(World& world, const TrainOptions& o) {
  const bool on_gpu = world.device().kind() == DeviceKind::kCuda;
  if (on_gpu && !o.mesh.keeps("machine"))
    throw UsageError(
        "--mesh auto on GPUs needs --machine: use dgx-a100, dgx-h100, dgx-h200, or a file from aliquot doctor "
        "--measure.");
  Machine machine = find_machine(o.machine);
  machine.has_gpus = on_gpu;
  const MeshSearch search = search_meshes(plan_options(world, o), machine, {});
  const std::string reason = search.reason(o.machine);
  if (search.best.empty()) throw UnavailableError("--mesh auto: " + reason + ".");
  Choice choice{options_of(search.best.front().choice), reason};
  choice.options.push_back({"global-batch", "--global-batch", std::to_string(search.global_batch)});
  return choice;
}

/// Returns the choice or the error of rank 0 as JSON.
std::string choice_text(World& world, const TrainOptions& options) {
  Json text;
  try {
    const Choice choice = choose(world, options);
    for (const GivenOption& one : choice.options) text["options"].push_back({one.name, one.value});
    text["reason"] = choice.reason;
  } catch (const UnavailableError& error) {
    text["unavailable"] = error.what();
  } catch (const std::exception& error) {
    text["error"] = error.what();
  }
  return text.dump();
}

}  // namespace

void choose_mesh(World& world, TrainOptions& options) {
  if (!options.mesh.automatic) return;
  check_same_options(world, options);
  const ScopedCollectivePurpose purpose("choose the mesh");
  const std::string own = world.rank() == 0 ? choice_text(world, options) : "";
  const Json choice = Json::parse(world.communicator().gather_objects(own).front());
  if (choice.contains("unavailable")) throw UnavailableError(choice["unavailable"].get<std::string>());
  if (choice.contains("error")) throw UsageError(choice["error"].get<std::string>());
  std::vector<GivenOption> chosen;
  for (const Json& one : choice["options"])
    chosen.push_back({one[0].get<std::string>(), "--mesh auto", one[1].get<std::string>()});
  options.engine.accumulate = 1;
  set_options(train_option_table(options), chosen);
  apply_mesh(options.mesh, {}, options.engine);
  options.mesh.reason = choice["reason"].get<std::string>();
}

}  // namespace aliquot
