#include "tests/engine/plan/random_plan.h"

#include <algorithm>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <random>

#include "engine/plan/pipeline.h"
#include "engine/plan/schedule.h"
#include "kernels/system/error.h"

namespace aliquot::testing {
namespace {

/// Random numbers. The class does not use standard distributions, whose results differ between standard libraries.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  /// Returns a number in [least, most].
  int roll(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int n) { return roll(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

std::vector<int64_t> draw_shape(Dice& dice) {
  static constexpr int64_t kCounts[] = {0, 1, 7, 255, 256, 257, 1000, 4099};
  if (dice.one_in(8)) return {};
  const int64_t count = kCounts[dice.roll(0, 7)];
  if (dice.one_in(3)) return {count, dice.roll(1, 5)};
  return {count};
}

UnitSpec draw_unit(Dice& dice, int index) {
  UnitSpec unit{fmt::format("u{}", index), {}, GradientMode::kAdd};
  const int tensor_count = dice.one_in(10) ? 0 : dice.roll(1, 4);
  const bool frozen = dice.one_in(6);
  for (int t = 0; t < tensor_count; ++t) {
    ParameterSpec parameter;
    parameter.tensor = {fmt::format("u{}.t{}", index, t), draw_shape(dice), DType::kFloat32,
                        !frozen && !dice.one_in(6)};
    parameter.decayed = !dice.one_in(3);
    parameter.matrix = !dice.one_in(5);
    unit.parameters.push_back(std::move(parameter));
  }
  return unit;
}

void draw_uses(Dice& dice, ModelSpec& model) {
  const auto count = static_cast<UnitId>(model.units.size());
  for (UnitId unit = 0; unit < count; ++unit) {
    if (unit > 0 && dice.one_in(5)) {
      model.uses.back().push_back(unit);  // gathered together with the previous unit
    } else {
      model.uses.push_back({unit});
    }
  }
  for (int again = dice.one_in(2) ? 0 : dice.roll(1, 3); again > 0; --again) {  // adds more uses of some units
    const auto unit = static_cast<UnitId>(dice.roll(0, count - 1));
    const auto at = static_cast<std::size_t>(dice.roll(0, static_cast<int>(model.uses.size())));
    if (at < model.uses.size() && dice.one_in(2)) {
      auto& use = model.uses[at];
      if (std::find(use.begin(), use.end(), unit) == use.end()) use.push_back(unit);
    } else {
      model.uses.insert(model.uses.begin() + static_cast<std::ptrdiff_t>(at), {unit});
    }
  }
}

void draw_activations(Dice& dice, RandomCase& drawn) {
  static constexpr int64_t kSizes[] = {0, 4, 256, 1000, 5000};
  ActivationSpec& spec = drawn.model.activations;
  for (std::size_t use = 0; use < drawn.model.uses.size(); ++use) {
    spec.uses.push_back({kSizes[dice.roll(0, 4)], kSizes[dice.roll(0, 4)], kSizes[dice.roll(0, 4)], dice.one_in(2),
                         !dice.one_in(3), !dice.one_in(3)});
    if (dice.one_in(2)) {
      spec.uses.back().splits_backward = true;
      spec.uses.back().weight_inputs_bytes = kSizes[dice.roll(0, 4)];
    }
    if (spec.uses.back().recomputable) drawn.policy.recompute = dice.roll(0, static_cast<int>(use) + 1);
  }
  spec.backward_bytes = kSizes[dice.roll(0, 4)];
}

Precision draw_precision(Dice& dice) {
  static constexpr DType kCompute[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  Precision precision;
  precision.compute = kCompute[dice.roll(0, 2)];
  precision.master = dice.one_in(2) ? MasterForm::kSplit : MasterForm::kFp32;
  precision.gradients = dice.one_in(3) ? DType::kBFloat16 : DType::kFloat32;
  if (dice.one_in(3)) precision.reduce = DType::kBFloat16;
  return precision;
}

/// Returns a replica count with which all replicas have the same topology, or 1.
int draw_replica_count(Dice& dice, const Topology& topology) {
  const int count = dice.roll(2, 4);
  try {
    topology_of_shard_group(topology, count);
    return count;
  } catch (const UsageError&) {
    return 1;
  }
}

/// Adds the backward passes of one virtual stage to an order. Each pass is whole or in two parts. Several first parts
/// may run before their second parts, which keep the order of micro-batches.
class RandomBackwards {
 public:
  /// Return how many micro-batches have begun their backward, and how many have completed it.
  int begun() const { return begun_; }
  int complete() const { return begun_ - static_cast<int>(in_parts_.size()); }

  /// Begins the backward of the next micro-batch. It is whole only if all earlier ones are complete.
  void begin(Dice& dice, int stage, std::vector<PipelineAction>& passes) {
    const bool whole = in_parts_.empty() && dice.one_in(2);
    passes.push_back({stage, whole ? PassKind::kBackward : PassKind::kBackwardInput, begun_});
    if (!whole) in_parts_.push_back(begun_);
    ++begun_;
  }
  /// Runs the second part of the first micro-batch that waits for it.
  void end(int stage, std::vector<PipelineAction>& passes) {
    passes.push_back({stage, PassKind::kBackwardWeights, in_parts_.front()});
    in_parts_.pop_front();
  }

 private:
  int begun_ = 0;
  std::deque<int> in_parts_;  // micro-batches whose second part has not run
};

/// Draws a valid order of passes, with any number of micro-batches in flight.
std::vector<PipelineAction> draw_passes(Dice& dice, int micro_batches) {
  std::vector<PipelineAction> passes;
  RandomBackwards backwards;
  for (int forward = 0; backwards.complete() < micro_batches;) {
    if (forward < micro_batches && (forward == backwards.complete() || dice.one_in(2)))
      passes.push_back({0, PassKind::kForward, forward++});
    else if (backwards.begun() < forward && (backwards.begun() == backwards.complete() || dice.one_in(2)))
      backwards.begin(dice, 0, passes);
    else if (backwards.complete() < backwards.begun())
      backwards.end(0, passes);
  }
  return passes;
}

bool nodes_are_even(const Topology& topology) {
  const int ranks_per_node = topology.rank_count() / topology.node_count();
  return topology == hosts(topology.rank_count(), ranks_per_node);
}

Policy draw_policy(Dice& dice, const Topology& topology) {
  Policy policy;
  policy.zero_stage = dice.roll(0, 3);
  policy.micro_batch_count = dice.roll(1, 4);
  if (dice.one_in(3)) policy.pass_order = {draw_passes(dice, policy.micro_batch_count)};
  policy.accumulate_into = static_cast<AccumulateInto>(dice.roll(0, 2));
  policy.prefetch = dice.roll(0, 4);
  policy.keep_gathered = dice.roll(0, 3);
  if (dice.one_in(4)) policy.gather_for = dice.one_in(2) ? kGatherForStep : dice.roll(kGatherForAuto, 3);
  policy.gather = topology.one_node() ? static_cast<GatherMode>(dice.roll(0, 2)) : GatherMode::kAuto;
  policy.state_bytes_per_block = 1024 * dice.roll(0, 3);
  policy.precision = draw_precision(dice);
  policy.update_in_backward = policy.precision.compute != DType::kFloat16 && dice.one_in(4);
  if (!policy.update_in_backward && dice.one_in(3))
    policy.matrix_updates = {{.state_bytes_per_block = 512 * dice.roll(1, 2), .iterations = dice.roll(1, 5)}};
  const bool powers_of_two =
      (topology.rank_count() & (topology.rank_count() - 1)) == 0 && policy.micro_batch_count != 3;
  if (powers_of_two && policy.accumulate_into != AccumulateInto::kFull) policy.reproducible = dice.one_in(2);
  if (dice.one_in(3)) policy.replica_count = draw_replica_count(dice, topology);
  if (dice.one_in(3)) policy.offload_state = static_cast<Offload>(dice.roll(1, 2));
  if (policy.zero_stage == 3 && policy.gather != GatherMode::kView && dice.one_in(4))
    policy.offload_parameters = static_cast<Offload>(dice.roll(1, 2));
  if (nodes_are_even(topology_of_shard_group(topology, policy.replica_count))) {
    const bool gathers = policy.zero_stage == 3 && policy.gather != GatherMode::kView;
    policy.quantize_weights = gathers && policy.offload_parameters == Offload::kNone && dice.one_in(2);
    policy.quantize_gradients = !policy.reproducible && dice.one_in(3);
  }
  return policy;
}

/// Replaces each rank by a tensor group of `tensor` ranks. With `across`, each tensor coordinate has nodes of its own.
Topology with_tensor_groups(const Topology& data, int tensor, bool across) {
  Topology stage;
  for (int rank = 0; rank < data.rank_count(); ++rank) {
    for (int coordinate = 0; coordinate < tensor; ++coordinate) {
      stage.node_of_rank.push_back(data.node_of_rank[rank] + (across ? coordinate * data.node_count() : 0));
      stage.gpu_of_rank.push_back(data.gpu_of_rank[rank]);
    }
  }
  // Nodes are numbered in the order of their first ranks.
  std::map<int, int> numbers;
  for (int& node : stage.node_of_rank) node = numbers.try_emplace(node, static_cast<int>(numbers.size())).first->second;
  return stage;
}

/// Declares up to three collectives for some uses, and makes their buffers large enough.
void draw_collectives(Dice& dice, ModelSpec& model, int tensor) {
  ActivationSpec& spec = model.activations;
  for (UseActivations& use : spec.uses) {
    for (int left = dice.one_in(2) ? 0 : dice.roll(1, 3); left > 0; --left) {
      UseCollective what{.name = fmt::format("c{}", left),
                         .kind = static_cast<CollectiveKind>(dice.roll(0, 2)),
                         .part = static_cast<UsePart>(dice.roll(0, 2)),
                         .buffer = UseBuffer::kScratch,
                         .offset_bytes = 16 * dice.roll(0, 3),
                         .rows = dice.roll(1, 5),
                         .row_elements = dice.roll(1, 9),
                         .dtype = dice.one_in(2) ? DType::kFloat32 : DType::kBFloat16,
                         .in_recompute = dice.one_in(2)};
      if (what.part == UsePart::kForward) what.buffer = static_cast<UseBuffer>(dice.roll(0, 2));
      if (what.part == UsePart::kBackward && dice.one_in(2)) what.buffer = UseBuffer::kBackward;
      int64_t* sizes[] = {&use.output_bytes, &use.kept_bytes, &use.scratch_bytes, &spec.backward_bytes};
      int64_t& size = *sizes[static_cast<std::size_t>(what.buffer)];
      size = std::max(size, what.offset_bytes + what.size_bytes(tensor));
      use.collectives.push_back(std::move(what));
    }
    std::ranges::stable_partition(use.collectives,
                                  [](const UseCollective& what) { return what.part != UsePart::kBackwardWeights; });
  }
}

/// Splits some parameters, and lets the tensor group compute parts of the gradients of some others.
void draw_splits(Dice& dice, RandomCase& drawn) {
  for (UnitSpec& unit : drawn.model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      const auto dimensions = static_cast<int>(parameter.tensor.shape.size());
      parameter.partial_gradient = dice.one_in(2);
      const bool whole = drawn.policy.matrix_updates.has_value() && parameter.matrix && dimensions == 2;
      if (dimensions > 0 && !whole && dice.one_in(2)) parameter.split.dimension = dice.roll(0, dimensions - 1);
    }
  }
}

/// Replaces each rank of the case by a tensor group. The model may declare collectives.
void add_tensor_groups(Dice& dice, RandomCase& drawn, int tensor) {
  drawn.policy.tensor = drawn.policy.reproducible && tensor == 3 ? 4 : tensor;
  drawn.topology = with_tensor_groups(drawn.topology, drawn.policy.tensor, dice.one_in(3));
  draw_splits(dice, drawn);
  if (!dice.one_in(4)) draw_collectives(dice, drawn.model, drawn.policy.tensor);
}

}  // namespace

Topology hosts(int rank_count, int ranks_per_node) {
  Topology topology = Topology::one_host(rank_count);
  for (int r = 0; r < rank_count; ++r) topology.node_of_rank[r] = r / ranks_per_node;
  return topology;
}

namespace {

RandomCase draw_without_tensor_groups(uint64_t seed, int most_ranks, int most_units) {
  Dice dice(seed);
  RandomCase drawn;
  const int rank_count = dice.roll(1, most_ranks);
  drawn.topology = dice.one_in(2) ? hosts(rank_count, rank_count) : hosts(rank_count, dice.roll(1, rank_count));
  const int unit_count = dice.roll(1, most_units);
  for (int u = 0; u < unit_count; ++u) drawn.model.units.push_back(draw_unit(dice, u));
  draw_uses(dice, drawn.model);
  drawn.policy = draw_policy(dice, drawn.topology);
  const bool into_shard = drawn.policy.accumulate_into == AccumulateInto::kShard || drawn.policy.reproducible ||
                          (drawn.policy.accumulate_into == AccumulateInto::kAuto && drawn.policy.zero_stage >= 2);
  std::vector<int> use_count(drawn.model.units.size(), 0);
  for (const auto& use : drawn.model.uses) {
    for (const UnitId unit : use) ++use_count[unit];
  }
  for (std::size_t u = 0; u < drawn.model.units.size(); ++u) {
    const bool may_assign = use_count[u] == 1 && (into_shard || drawn.policy.micro_batch_count == 1);
    if (may_assign && dice.one_in(4)) drawn.model.units[u].gradients = GradientMode::kAssign;
  }
  if (dice.one_in(2)) draw_activations(dice, drawn);
  // These dice do not change what other options are drawn.
  drawn.policy.check_state = Dice(seed * 86028121 + 3).one_in(3);
  if (rank_count > 1 && !drawn.policy.update_in_backward && Dice(seed * 67867967 + 9).one_in(3))
    drawn.policy.replay_every = 5;
  return drawn;
}

}  // namespace

RandomCase draw(uint64_t seed, int most_ranks, int most_units) {
  RandomCase drawn = draw_without_tensor_groups(seed, most_ranks, most_units);
  // The dice of tensor groups do not change what other options are drawn.
  Dice tensor(seed * 49979687 + 11);
  const int ranks = tensor.roll(2, 3);
  if (drawn.topology.rank_count() * ranks <= std::max(most_ranks, 3) && tensor.one_in(2))
    add_tensor_groups(tensor, drawn, ranks);
  return drawn;
}

RandomCase on_one_gpu(RandomCase drawn) {
  drawn.topology.gpu_of_rank.assign(drawn.topology.gpu_of_rank.size(), 0);
  return drawn;
}

std::optional<Plan> planned(const RandomCase& drawn) {
  try {
    return plan(drawn.model, drawn.policy, drawn.topology);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

RandomCase over_nccl(RandomCase drawn) {
  std::iota(drawn.topology.gpu_of_rank.begin(), drawn.topology.gpu_of_rank.end(), 0);
  drawn.topology.over_nccl = true;
  return drawn;
}

namespace {

/// Draws a valid order of passes. Repeatedly selects a random virtual stage that can run a pass, and appends that pass.
PassOrder draw_pass_order(Dice& dice, const PipelineShape& shape) {
  PassOrder order(static_cast<std::size_t>(shape.ranks));
  const int stages = shape.stage_count(), micro_batches = shape.micro_batches;
  std::vector<int> forward(static_cast<std::size_t>(stages), 0);
  std::vector<RandomBackwards> backwards(static_cast<std::size_t>(stages));
  const auto is_complete = [&](const RandomBackwards& of) { return of.complete() == micro_batches; };
  while (!std::ranges::all_of(backwards, is_complete)) {
    const int stage = dice.roll(0, stages - 1);
    const auto s = static_cast<std::size_t>(stage);
    auto& passes = order[static_cast<std::size_t>(shape.rank_of(stage))];
    const bool can_forward = forward[s] < micro_batches && (stage == 0 || forward[s - 1] > forward[s]);
    const bool can_begin =
        backwards[s].begun() < forward[s] && (stage + 1 == stages || backwards[s + 1].begun() > backwards[s].begun());
    if (backwards[s].complete() < backwards[s].begun() && dice.one_in(2))
      backwards[s].end(stage, passes);
    else if (can_forward && (!can_begin || dice.one_in(2)))
      passes.push_back({stage, PassKind::kForward, forward[s]++});
    else if (can_begin)
      backwards[s].begin(dice, stage, passes);
  }
  return order;
}

/// Returns the topology of `stages` pipeline stages, each of which has the topology `stage`. Either all pipeline stages
/// are on the same nodes, or each has nodes of its own.
Topology repeated(const Topology& stage, int stages, bool on_own_nodes) {
  Topology world;
  for (int s = 0; s < stages; ++s) {
    for (const int node : stage.node_of_rank)
      world.node_of_rank.push_back(node + (on_own_nodes ? s * stage.node_count() : 0));
    world.gpu_of_rank.insert(world.gpu_of_rank.end(), stage.gpu_of_rank.begin(), stage.gpu_of_rank.end());
  }
  world.numa_of_rank.assign(world.node_of_rank.size(), -1);
  return world;
}

}  // namespace

RandomCase draw_pipeline(uint64_t seed, int most_stages, int most_ranks) {
  RandomCase drawn = draw_without_tensor_groups(seed, most_ranks, 6);
  Dice dice(seed * 7919 + 1);
  ModelSpec& model = drawn.model;
  Policy& policy = drawn.policy;
  if (model.units.size() < 2) {
    model.units.push_back(model.units.front());
    model.units.back().name += "b";
    for (ParameterSpec& parameter : model.units.back().parameters) parameter.tensor.name += "b";
  }
  model.uses.clear();
  for (UnitId unit = 0; unit < static_cast<UnitId>(model.units.size()); ++unit) model.uses.push_back({unit});
  // If true, the model gets one more use of the first unit at its end, like a tied head.
  const bool tied = Dice(seed * 104729 + 3).one_in(2);
  if (tied) {
    model.uses.push_back({0});
    model.units.front().gradients = GradientMode::kAdd;
  }
  model.activations = {};
  policy.recompute = kRecomputeAsNeeded;
  draw_activations(dice, drawn);
  for (UseActivations& use : model.activations.uses) use.output_bytes += 64;
  model.activations.backward_bytes += 64;
  const int uses = static_cast<int>(model.uses.size()) - (tied ? 1 : 0);  // number of uses that the cut divides
  policy.pipeline = dice.roll(2, std::min(uses, most_stages));
  static constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B,
                                                    PipelineSchedule::kZeroBubble};
  policy.pipeline_schedule = kSchedules[dice.roll(0, 2)];
  if (policy.pipeline_schedule == PipelineSchedule::kZeroBubble) model.activations.uses.front().splits_backward = true;
  if (uses >= 2 * policy.pipeline && dice.one_in(2)) {
    policy.pipeline_schedule = PipelineSchedule::kInterleaved;
    policy.virtual_stages = dice.roll(2, uses / policy.pipeline);
  }
  const int stages = static_cast<int>(virtual_stage_count(policy));
  policy.pipeline_cut.assign(static_cast<std::size_t>(stages), 1);
  for (int left = uses - stages; left > 0; --left)
    ++policy.pipeline_cut[static_cast<std::size_t>(dice.roll(0, stages - 1))];
  if (tied) ++policy.pipeline_cut.front();
  if (tied && !accumulates_into_shard(policy)) policy.replay_every = 0;  // not possible with several micro-batches
  policy.pass_order.clear();
  if (dice.one_in(2))
    policy.pass_order = draw_pass_order(dice, {policy.pipeline, policy.micro_batch_count, policy.virtual_stages});
  // Tensor groups and pass times have separate dice, so that they do not change which other options a seed draws.
  Dice tensor(seed * 32452843 + 7);
  if (tensor.one_in(4)) add_tensor_groups(tensor, drawn, tensor.roll(2, 3));
  drawn.topology = repeated(drawn.topology, policy.pipeline, dice.one_in(2));
  Dice times(seed * 15485863 + 5);
  if (!times.one_in(3)) return drawn;
  const auto time = [&times] { return static_cast<int64_t>(1) << times.roll(0, 20); };
  const int32_t virtual_stages = pipeline_stages(model, policy).front().run_count;
  for (int32_t stage = 0; stage < virtual_stages; ++stage)
    policy.pass_times.push_back({time(), time(), time(), time(), time() - 1, time() - 1});
  return drawn;
}

std::string describe(uint64_t seed, const RandomCase& drawn) {
  const Policy& policy = drawn.policy;
  return fmt::format(
      "seed {}: {} units, {} uses, {}, ZeRO stage {}, {} micro-batches, accumulate {}, prefetch {}, keep {} and {}, "
      "gather {}, {}{}{}{}{}{}{}, offload {} and {}, {} replicas, {} recomputed, {} pipeline stages of {} virtual "
      "stages, "
      "tensor groups of {}{}",
      seed, drawn.model.units.size(), drawn.model.uses.size(), drawn.topology.describe(), policy.zero_stage,
      policy.micro_batch_count, static_cast<int>(policy.accumulate_into), policy.prefetch, policy.keep_gathered,
      policy.gather_for, static_cast<int>(policy.gather), policy.precision.describe(),
      policy.update_in_backward ? ", update in backward" : "", policy.reproducible ? ", reproducible" : "",
      policy.matrix_updates ? ", Muon for matrices" : "", policy.quantize_weights ? ", weights in 8 bits" : "",
      policy.quantize_gradients ? ", gradients in 8 bits" : "", policy.check_state ? ", digests of the state" : "",
      static_cast<int>(policy.offload_state), static_cast<int>(policy.offload_parameters), policy.replica_count,
      policy.recompute, policy.pipeline, policy.virtual_stages, policy.tensor,
      policy.replay_every == 0 ? "" : ", replays");
}

}  // namespace aliquot::testing
