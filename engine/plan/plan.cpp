#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <numeric>
#include <tuple>

#include "engine/plan/pipeline.h"
#include "engine/plan/schedule.h"
#include "engine/plan/use_collectives.h"
#include "engine/plan/writer/writer.h"
#include "kernels/system/error.h"
#include "optim/muon/muon.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }

void refuse_precision(const Policy& policy) {
  const Precision& precision = policy.precision;
  const auto is_wide = [](DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; };
  if (!is_wide(precision.compute) && precision.compute != DType::kFloat16)
    throw UsageError(
        fmt::format("EngineOptions::precision.compute is {}: expected fp32, bf16 or fp16", name(precision.compute)));
  if (!is_wide(precision.gradients) || !is_wide(precision.sent()))
    throw UsageError(
        fmt::format("EngineOptions::precision.gradients is {} and EngineOptions::precision.reduce is {}: "
                    "expected fp32 or bf16",
                    name(precision.gradients), name(precision.sent())));
  if (precision.gradients == DType::kBFloat16 && precision.sent() == DType::kFloat32)
    throw UsageError(
        "EngineOptions::precision.reduce is fp32, but EngineOptions::precision.gradients is bf16: sending rounded "
        "gradients in fp32 gains nothing; use the same type for both");
}

/// The schedule of a larger step would not fit in the memory of the host.
void refuse_too_large_steps(const ModelSpec& model, const Policy& policy) {
  const int64_t use_count = std::ssize(model.uses), micro_batch_count = policy.micro_batch_count;
  if (use_count * micro_batch_count <= kMaxForwardPasses) return;
  throw UsageError(fmt::format(
      "a step has {} uses and {} micro-batches, and their product exceeds {}: set EngineOptions::accumulate "
      "to at most {}{}",
      use_count, micro_batch_count, kMaxForwardPasses, std::max<int64_t>(1, kMaxForwardPasses / use_count),
      use_count > kMaxForwardPasses ? ", and declare fewer uses with larger units" : ""));
}

void refuse_recompute(const ModelSpec& model, const Policy& policy) {
  if (policy.recompute < kRecomputeAsNeeded)
    throw UsageError(
        fmt::format("EngineOptions::recompute is {}: expected a number of uses, 0 or more, or {} (as "
                    "needed)",
                    policy.recompute, kRecomputeAsNeeded));
  if (!policy.recompute_by_stage.empty() && std::cmp_not_equal(policy.recompute_by_stage.size(), policy.pipeline))
    throw UsageError(
        fmt::format("Policy::recompute_by_stage has {} numbers, but Policy::pipeline is {}: expected one "
                    "for each pipeline stage",
                    policy.recompute_by_stage.size(), policy.pipeline));
  const auto& uses = model.activations.uses;
  const bool can = std::ranges::any_of(uses, [](const UseActivations& use) { return use.recomputable; });
  if (policy.recompute > 0 && !can) {
    throw UsageError(
        "EngineOptions::recompute is set, but this model declares no recomputable use (Engine::declare_activations())");
  }
}

void refuse_quantization(const Policy& policy, const Topology& replica) {
  if (!policy.quantize_weights && !policy.quantize_gradients) return;
  if (policy.quantize_weights && policy.zero_stage < 3)
    throw UsageError(
        fmt::format("EngineOptions::quantize_weights requires EngineOptions::zero_stage 3, but it is {}: every rank "
                    "keeps full parameters, and no gather is needed",
                    policy.zero_stage));
  if (policy.quantize_weights && policy.gather == GatherMode::kView)
    throw UsageError(
        "EngineOptions::quantize_weights decodes gathered copies, but EngineOptions::gather is view: use copy or auto");
  if (policy.quantize_weights && policy.offload_parameters != Offload::kNone)
    throw UsageError(
        "EngineOptions::quantize_weights and EngineOptions::offload_parameters cannot be combined: set only one");
  if (policy.quantize_gradients && policy.reproducible)
    throw UsageError(
        "EngineOptions::quantize_gradients and EngineOptions::reproducible cannot be combined: quantized sums depend "
        "on "
        "the number of nodes");
  const int on_each = replica.rank_count() / replica.node_count();
  for (int r = 0; r < replica.rank_count(); ++r) {
    if (replica.node_of_rank[r] == r / on_each) continue;
    throw UsageError(
        fmt::format("EngineOptions::quantize_weights and EngineOptions::quantize_gradients require the same number of "
                    "contiguous ranks on every node, but there are {}",
                    replica.describe()));
  }
}

/// Throws UsageError if the quantity `what` of a reproducible sum is not a power of two.
void refuse_other_than_power_of_two(std::string_view what, int count) {
  if (is_power_of_two(count)) return;
  const auto below = std::bit_floor(static_cast<unsigned>(count));
  throw UsageError(
      fmt::format("EngineOptions::reproducible is set, but {} is {}: expected a power of two, for example {} or {}",
                  what, count, below, 2 * below));
}

void refuse_reproducible(const Policy& policy, int ranks) {
  refuse_other_than_power_of_two(
      policy.pipeline > 1 ? "the number of ranks of each pipeline stage" : "the number of ranks", ranks);
  refuse_other_than_power_of_two("EngineOptions::tensor", policy.tensor);
  refuse_other_than_power_of_two("EngineOptions::accumulate", policy.micro_batch_count);
  if (policy.accumulate_into == AccumulateInto::kFull && policy.micro_batch_count > 1)
    throw UsageError(
        "EngineOptions::reproducible sums every micro-batch over the ranks, but EngineOptions::accumulate_into is "
        "full: use shard or auto");
  if (policy.micro_batch_count > 1 << (kTreeLevelCount - 1))
    throw UsageError(
        fmt::format("EngineOptions::reproducible allows at most {} micro-batches, but EngineOptions::accumulate is {}",
                    1 << (kTreeLevelCount - 1), policy.micro_batch_count));
}

void refuse_invalid_order(const Policy& policy) {
  check(policy.pass_order,
        {.ranks = policy.pipeline, .micro_batches = policy.micro_batch_count, .virtual_stages = policy.virtual_stages});
}

void refuse_zero_bubble_without_splits(const ModelSpec& model, const Policy& policy) {
  if (policy.pipeline == 1 || policy.pipeline_schedule != PipelineSchedule::kZeroBubble || !policy.pass_order.empty())
    return;
  if (std::ranges::any_of(model.activations.uses, &UseActivations::splits_backward)) return;
  throw UsageError(
      "EngineOptions::pipeline_schedule is kZeroBubble, but no use of the model declares a split backward: set "
      "UseActivations::splits_backward for the uses that support it, or choose another schedule");
}

void refuse_split_matrices(const ModelSpec& model, const Policy& policy) {
  if (!policy.matrix_updates || policy.tensor == 1) return;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const bool whole = parameter.matrix && parameter.tensor.trainable && is_matrix(parameter.tensor.shape);
      if (!whole || parameter.split.dimension < 0) continue;
      throw UsageError(
          fmt::format("Muon updates whole matrices, but {} is split over a tensor group: set ParameterOptions::matrix "
                      "to false, or use another optimizer",
                      parameter.tensor.name));
    }
  }
}

/// Throws UsageError if an option is invalid, or if options exclude one another. `ranks`: the number of ranks of each
/// pipeline stage.
void refuse_incompatible_options(const ModelSpec& model, const Policy& policy, int ranks) {
  if (policy.zero_stage < 0 || policy.zero_stage > 3) {
    throw UsageError(
        fmt::format("EngineOptions::zero_stage is {}: expected 0 (shards nothing), 1 (optimizer state), 2 (gradients "
                    "too) or 3 (parameters too)",
                    policy.zero_stage));
  }
  if (policy.micro_batch_count < 1)
    throw UsageError(fmt::format("EngineOptions::accumulate is {}: expected 1 or more", policy.micro_batch_count));
  if (policy.between_steps_bytes < 0)
    throw UsageError(
        fmt::format("EngineOptions::between_steps_bytes is {}: expected 0 or more", policy.between_steps_bytes));
  if (policy.prefetch < 0 || policy.keep_gathered < 0)
    throw UsageError(
        fmt::format("EngineOptions::prefetch is {} and EngineOptions::keep_gathered is {}: expected 0 or "
                    "more",
                    policy.prefetch, policy.keep_gathered));
  if (policy.gather_for < kGatherForAuto)
    throw UsageError(
        fmt::format("EngineOptions::gather_for is {}: expected a number of micro-batches, {} (pass) or {} "
                    "(auto)",
                    policy.gather_for, kGatherForPass, kGatherForAuto));
  refuse_recompute(model, policy);
  refuse_zero_bubble_without_splits(model, policy);
  refuse_precision(policy);
  refuse_split_matrices(model, policy);
  if (policy.offload_parameters != Offload::kNone && policy.zero_stage < 3)
    throw UsageError(
        fmt::format("EngineOptions::offload_parameters requires EngineOptions::zero_stage 3, but it is {}: every rank "
                    "needs full parameters",
                    policy.zero_stage));
  if (policy.update_in_backward && policy.precision.compute == DType::kFloat16)
    throw UsageError(
        "EngineOptions::update_in_backward cannot skip a step, which fp16 may need: compute in bf16, or leave "
        "EngineOptions::update_in_backward off");
  if (policy.update_in_backward && policy.matrix_updates)
    throw UsageError(
        "EngineOptions::update_in_backward updates single units, but Muon updates matrices of several units at the end "
        "of the step: use another optimizer, or leave EngineOptions::update_in_backward off");
  if (policy.reproducible) refuse_reproducible(policy, ranks);
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.tensor.dtype != DType::kFloat32) {
        throw UsageError(
            fmt::format("parameter {} is declared {}: expected fp32; EngineOptions::precision.compute sets the type "
                        "that the model reads",
                        parameter.tensor.name, name(parameter.tensor.dtype)));
      }
    }
  }
  if (!policy.pass_order.empty()) refuse_invalid_order(policy);
}

/// Throws UsageError if kernels that overwrite gradients would destroy gradients of an earlier use or micro-batch.
void refuse_overwritten_gradients(const ModelSpec& model, bool into_shard, int micro_batch_count) {
  std::vector<int> use_count(model.units.size(), 0);
  for (const auto& use : model.uses) {
    for (const UnitId unit : use) ++use_count[unit];
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].gradients == GradientMode::kAdd) continue;
    if (use_count[u] > 1) {
      throw UsageError(
          fmt::format("unit {} is used {} times in a pass, so its gradient kernels must add: do not call "
                      "Unit::assigns_gradients()",
                      model.units[u].name, use_count[u]));
    }
    if (!into_shard && micro_batch_count > 1) {
      throw UsageError(
          fmt::format("unit {} assigns its gradients, so micro-batches cannot be summed in full gradients: "
                      "set EngineOptions::accumulate_into to shard, or do not call "
                      "Unit::assigns_gradients()",
                      model.units[u].name));
    }
  }
}

/// `data`: the ranks that read different samples.
void refuse_replay(const Policy& policy, const Topology& data) {
  if (policy.replay_every == 0) return;
  if (policy.replay_every < kReplayAuto)
    throw UsageError(
        fmt::format("EngineOptions::replay_every is {}: expected 0 (never), a number of steps or {} (auto)",
                    policy.replay_every, kReplayAuto));
  if (data.rank_count() == 1)
    throw UsageError(
        "EngineOptions::replay_every is set, but all ranks read the same samples, so no rank can repeat the work of "
        "another: expected at least 2 data-parallel ranks, and 3 to decide which of two ranks is wrong");
  if (policy.update_in_backward)
    throw UsageError(
        "EngineOptions::update_in_backward updates units before gradients are compared, but "
        "EngineOptions::replay_every must be able to refuse the update: set only one of them");
}

/// The digests are those of the gradients of micro-batch 0 alone.
void refuse_replay_of_mixed_gradients(const Plan& plan) {
  if (plan.policy.replay_every == 0 || plan.schedule.accumulate_into_shard || plan.policy.micro_batch_count == 1)
    return;
  const std::vector<bool> several = units_in_several_runs(plan);
  for (std::size_t unit = 0; unit < several.size(); ++unit) {
    if (!several[unit]) continue;
    throw UsageError(
        fmt::format("EngineOptions::replay_every is set, but unit {} has uses in several virtual stages, so the "
                    "gradients of several micro-batches are added in one buffer: set EngineOptions::accumulate_into to "
                    "shard",
                    plan.model.units[unit].name));
  }
}

bool can_view(const Topology& topology) {
  return topology.has_gpus() ? topology.shares_one_gpu() : topology.one_node();
}

/// Whether groups with these two topologies can have the same plan.
bool alike(const Topology& a, const Topology& b) {
  return a.node_of_rank == b.node_of_rank && a.has_gpus() == b.has_gpus() && a.shares_one_gpu() == b.shares_one_gpu();
}

Schedule resolve(const ModelSpec& model, const Policy& policy, const Topology& topology, const StagePasses& passes) {
  Schedule schedule;
  schedule.zero_stage = policy.zero_stage;
  schedule.micro_batch_count = policy.micro_batch_count;
  const bool wants_shard = accumulates_into_shard(policy);
  schedule.micro_batches_in_flight = max_in_flight_of_a_stage(passes.actions, passes.receives);
  schedule.accumulate_into_shard = wants_shard && policy.micro_batch_count > 1;
  schedule.reduces_in_place = policy.zero_stage <= 1 && !schedule.accumulate_into_shard && policy.replica_count == 1;
  schedule.sums_in_levels = schedule.accumulate_into_shard && policy.reproducible;
  refuse_overwritten_gradients(model, wants_shard, policy.micro_batch_count);
  if (policy.gather == GatherMode::kView && policy.offload_parameters != Offload::kNone)
    throw UsageError(
        "EngineOptions::gather is view, which reads shards in place, so EngineOptions::offload_parameters is not "
        "possible: use copy or auto");
  if (policy.gather == GatherMode::kView && !can_view(topology)) {
    throw UsageError(
        "EngineOptions::gather is view, which requires all ranks on one host, without GPUs or on one GPU: use copy or "
        "auto");
  }
  schedule.view = policy.zero_stage == 3 && policy.gather != GatherMode::kCopy && can_view(topology) &&
                  policy.offload_parameters == Offload::kNone && !policy.quantize_weights;
  return schedule;
}

/// Returns the size of the staging memory for tensors between steps. Uses the memory that persistent buffers leave free
/// below the step's peak, so that reading tensors does not raise the peak. Between fixed limits, large tensors get more
/// memory, so that they need fewer gathers.
int64_t stream_bytes(const Plan& plan) {
  constexpr int64_t kLeast = 64 << 10, kMost = 1 << 20, kValueBytes = element_bytes(DType::kFloat32);
  constexpr int64_t kMostRounds = 1024;  // maximum number of gathers for the largest tensor, if kMost permits
  int64_t largest = 0;
  for (const FlatSpec& flat : plan.flats) {
    for (const TensorSpec& tensor : flat.layout.tensors()) largest = std::max(largest, tensor.element_count());
  }
  const int64_t free_bytes = account(plan.schedule).peak_bytes - persistent_bytes(plan.schedule);
  const int64_t wanted_bytes = std::max(free_bytes, kStreamCopies * largest * kValueBytes / kMostRounds);
  const int64_t chunk_bytes = std::clamp(wanted_bytes, kLeast, kMost) / kStreamCopies / kValueBytes * kValueBytes;
  return kStreamCopies * std::min(chunk_bytes, largest * kValueBytes);
}

void lay_out(Plan& plan, const StagePasses& passes) {
  ScheduleDraft draft = write(plan, passes);
  offload(plan, draft);
  place(std::move(draft), plan.schedule, plan.topology.rank_count());
  prune(plan.schedule.operations);
  assign_groups(plan);
  plan.schedule.stream_bytes = std::max(stream_bytes(plan), plan.policy.between_steps_bytes);
}

}  // namespace

bool encodes_gradients(const Plan& plan) {
  return plan.policy.quantize_gradients && plan.policy.replica_count == 1 && !plan.topology.one_node();
}
bool encodes_exchanges(const Plan& plan) {
  return plan.policy.quantize_gradients && plan.policy.replica_count > 1 && !plan.data_topology.one_node();
}

bool has_several_ranks_per_node(const Plan& plan) { return plan.topology.node_count() < plan.topology.rank_count(); }

int closed_levels(int32_t micro_batch) { return std::countr_one(static_cast<uint32_t>(micro_batch)); }

Topology topology_of_stage(const Topology& world, int stage_count, int stage) {
  const int ranks = world.rank_count() / std::max(stage_count, 1);
  if (stage_count < 1 || ranks * stage_count != world.rank_count())
    throw UsageError(fmt::format("EngineOptions::pipeline is {}: expected a divisor of the number of ranks, {}",
                                 stage_count, world.rank_count()));
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), stage * ranks);
  return topology_of_group(world, members);
}

bool tensor_groups_cross_nodes(const Topology& world, int tensor) {
  for (int rank = 0; rank < world.rank_count(); ++rank) {
    if (world.node_of_rank[rank] != world.node_of_rank[rank - rank % tensor]) return true;
  }
  return false;
}

Topology topology_of_data_ranks(const Topology& stage, int tensor) {
  if (tensor < 1 || stage.rank_count() % tensor != 0)
    throw UsageError(
        fmt::format("EngineOptions::tensor is {}: expected a divisor of the number of ranks of each "
                    "pipeline stage, {}",
                    tensor, stage.rank_count()));
  const auto with_coordinate = [&](int coordinate) {
    std::vector<int> members;
    for (int rank = coordinate; rank < stage.rank_count(); rank += tensor) members.push_back(rank);
    return topology_of_group(stage, members);
  };
  const Topology first = with_coordinate(0);
  for (int coordinate = 1; coordinate < tensor; ++coordinate) {
    const Topology other = with_coordinate(coordinate);
    if (alike(other, first)) continue;
    throw UsageError(
        fmt::format("EngineOptions::tensor is {}, but the ranks with tensor coordinate {} are {}, and those with "
                    "coordinate 0 are {}: start the same number of ranks on every node, so that tensor groups divide "
                    "each node",
                    tensor, coordinate, other.describe(), first.describe()));
  }
  return first;
}

Topology topology_of_shard_group(const Topology& data, int replica_count) {
  const int ranks = data.rank_count() / std::max(replica_count, 1);
  if (replica_count < 1 || ranks * replica_count != data.rank_count())
    throw UsageError(fmt::format("EngineOptions::replicas is {}: expected a divisor of the number of ranks, {}",
                                 replica_count, data.rank_count()));
  const auto replica = [&](int index) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), index * ranks);
    return topology_of_group(data, members);
  };
  const Topology first = replica(0);
  for (int index = 1; index < replica_count; ++index) {
    const Topology other = replica(index);
    if (alike(other, first)) continue;
    throw UsageError(
        fmt::format("all replicas must be distributed over nodes in the same way, but replica 0 is {} and replica {} "
                    "is {}: start the same number of ranks on every node, and choose EngineOptions::replicas to match",
                    first.describe(), index, other.describe()));
  }
  return first;
}

Topology topology_of_replicate_group(const Topology& data, int replica_count, int shard) {
  std::vector<int> members(static_cast<std::size_t>(replica_count));
  for (int index = 0; index < replica_count; ++index)
    members[static_cast<std::size_t>(index)] = index * (data.rank_count() / replica_count) + shard;
  return topology_of_group(data, members);
}

namespace {

/// Makes the plan of one pipeline stage, without Operation::peer_offset_bytes. The caller has checked the model, the
/// options and the pipeline.
Plan plan_of(const ModelSpec& model, const Policy& policy, const Topology& world, const PipelineStage& stage,
             const StagePasses& passes) {
  const Topology data = topology_of_data_ranks(topology_of_stage(world, stage.count, stage.index), policy.tensor);
  const Topology replica = topology_of_shard_group(data, policy.replica_count);
  refuse_quantization(policy, replica);
  refuse_replay(policy, data);
  Plan plan{.model = model,
            .policy = policy,
            .topology = replica,
            .world = world,
            .stage = stage,
            .data_topology = data,
            .unit_is_here = std::vector<bool>(model.units.size(), false),
            .flats = flats(model, replica.rank_count(), policy.replica_count, policy.matrix_updates.has_value(),
                           policy.check ? kRedZoneBlocks : 0, policy.tensor),
            .flats_of_unit = {},
            .matrix_groups = {},
            .schedule = resolve(model, policy, replica, passes)};
  for (const VirtualStage& run : stage.runs) {
    for (int32_t use = run.first_use; use < run.end_use; ++use) {
      for (const UnitId unit : model.uses[use]) plan.unit_is_here[unit] = true;
    }
  }
  plan.flats_of_unit.resize(model.units.size());
  for (std::size_t f = 0; f < plan.flats.size(); ++f)
    plan.flats_of_unit[plan.flats[f].unit].push_back(static_cast<int32_t>(f));
  refuse_replay_of_mixed_gradients(plan);
  plan.matrix_groups = matrix_groups(plan);
  lay_out(plan, passes);
  return plan;
}

/// Checks the model and the options, and returns the pipeline stages.
std::vector<PipelineStage> checked_stages(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  model.check();
  std::vector<PipelineStage> stages = pipeline_stages(model, policy);
  const Topology stage = topology_of_stage(topology, policy.pipeline, 0);
  refuse_incompatible_options(model, policy, topology_of_data_ranks(stage, policy.tensor).rank_count());
  check_collectives(model, policy.tensor);
  refuse_too_large_steps(model, policy);
  return stages;
}

}  // namespace

Plan plan_stage(const ModelSpec& model, const Policy& policy, const Topology& topology, int stage) {
  const std::vector<PipelineStage> stages = checked_stages(model, policy, topology);
  const auto index = static_cast<std::size_t>(stage);
  return plan_of(model, policy, topology, stages[index], stage_passes(policy, stages.front())[index]);
}

std::vector<Plan> plan_pipeline(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  const std::vector<PipelineStage> stages = checked_stages(model, policy, topology);
  const std::vector<StagePasses> passes = stage_passes(policy, stages.front());
  std::vector<Plan> plans;
  for (std::size_t s = 0; s < stages.size(); ++s)
    plans.push_back(plan_of(model, policy, topology, stages[s], passes[s]));
  // All ranks must stream tensors in chunks of the same size.
  int64_t stream_bytes = plans.front().schedule.stream_bytes;
  for (const Plan& plan : plans) stream_bytes = std::min(stream_bytes, plan.schedule.stream_bytes);
  for (Plan& plan : plans) plan.schedule.stream_bytes = stream_bytes;
  link_stages(plans);
  return plans;
}

Plan plan(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  if (policy.pipeline > 1)
    throw UsageError(fmt::format(
        "EngineOptions::pipeline is {}, but this plan has one pipeline stage: use plan_pipeline()", policy.pipeline));
  return std::move(plan_pipeline(model, policy, topology).front());
}

namespace {

/// Throws FaultError if the persistent buffers differ, because training and `other` use the same memory.
void require_same_persistent_buffers(const Schedule& training, const Schedule& other, std::string_view name) {
  const auto persistent = [](const Schedule& schedule) {
    std::vector<std::tuple<Role, int32_t, Space, int64_t, int64_t>> buffers;
    for (const PlannedBuffer& b : schedule.buffers) {
      if (b.always) buffers.emplace_back(b.role, b.flat, b.space, b.offset_bytes, b.size_bytes);
    }
    std::ranges::sort(buffers);
    return buffers;
  };
  if (persistent(training) != persistent(other))
    throw FaultError(
        fmt::format("the plans of training and of the {} have different persistent buffers: expected the same", name));
}

Policy evaluation_policy(Policy training) {
  training.evaluation = true;
  training.micro_batch_count = 1;
  return training;
}

/// The passes of micro-batch 0 in the order of `training`. The order cannot deadlock, because the passes of one
/// micro-batch do not depend on those of another.
Policy replay_policy(Policy training) {
  training.pass_order = pass_order_of(training);
  for (std::vector<PipelineAction>& actions : training.pass_order)
    std::erase_if(actions, [](const PipelineAction& action) { return action.micro_batch != 0; });
  training.replay = true;
  training.micro_batch_count = 1;
  return training;
}

/// Returns the plan of a step with one micro-batch that uses the persistent buffers of `training`.
Plan secondary_plan(const Plan& training, const Policy& policy, const StagePasses& passes, std::string_view name) {
  Plan plan = training;
  plan.policy = policy;
  plan.schedule = {.view = training.schedule.view,
                   .accumulate_into_shard = training.schedule.accumulate_into_shard,
                   .reduces_in_place = training.schedule.reduces_in_place,
                   .zero_stage = training.schedule.zero_stage};
  lay_out(plan, passes);
  plan.schedule.stream_bytes = training.schedule.stream_bytes;
  require_same_persistent_buffers(training.schedule, plan.schedule, name);
  return plan;
}

std::vector<Plan> secondary_plans(const std::vector<Plan>& stages, const Policy& policy, std::string_view name) {
  const std::vector<StagePasses> passes = stage_passes(policy, stages.front().stage);
  std::vector<Plan> plans;
  for (std::size_t s = 0; s < stages.size(); ++s) plans.push_back(secondary_plan(stages[s], policy, passes[s], name));
  link_stages(plans);
  return plans;
}

Plan secondary_plan(const Plan& training, const Policy& policy, std::string_view name) {
  const auto stage = static_cast<std::size_t>(training.stage.index);
  return secondary_plan(training, policy, stage_passes(policy, training.stage)[stage], name);
}

}  // namespace

Plan evaluation_of(const Plan& training) {
  return secondary_plan(training, evaluation_policy(training.policy), "evaluation");
}

std::vector<Plan> evaluations_of(const std::vector<Plan>& stages) {
  return secondary_plans(stages, evaluation_policy(stages.front().policy), "evaluation");
}

Plan replay_of(const Plan& training) { return secondary_plan(training, replay_policy(training.policy), "replay"); }

std::vector<Plan> replays_of(const std::vector<Plan>& stages) {
  return secondary_plans(stages, replay_policy(stages.front().policy), "replay");
}

}  // namespace aliquot
