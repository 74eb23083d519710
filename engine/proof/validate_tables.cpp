// Checks of the tables and numbers of a plan that the other checks use as indices.
#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/proof/validate_parts.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Defective = std::optional<std::string>;

/// Returns the message of the UsageError that `check` throws, or nullopt if it throws none.
template <typename Check>
Defective refusal(const Check& check) {
  try {
    check();
  } catch (const UsageError& error) {
    return error.what();
  }
  return std::nullopt;
}

bool in_range(int64_t value, std::size_t count) { return value >= 0 && std::cmp_less(value, count); }

Defective invalid_topology(const Topology& topology) {
  const std::size_t ranks = topology.node_of_rank.size();
  if (ranks == 0) return "a topology of the plan has 0 ranks: expected 1 or more";
  if (topology.gpu_of_rank.size() != ranks)
    return fmt::format("a topology of {} ranks has {} GPU numbers: expected one for each rank", ranks,
                       topology.gpu_of_rank.size());
  if (!topology.numa_of_rank.empty() && topology.numa_of_rank.size() != ranks)
    return fmt::format("a topology of {} ranks has {} numbers of NUMA nodes: expected one for each rank, or none",
                       ranks, topology.numa_of_rank.size());
  return std::nullopt;
}

/// Virtual stages are assigned to the pipeline stages in turn, so `stage` runs each `count`-th one. With tied ends,
/// their numbers begin with 1, and the last pipeline stage runs virtual stage 0 too.
Defective invalid_runs(const PipelineStage& stage, int32_t virtual_stages, std::size_t uses) {
  const int32_t tied = stage.tied_ends ? 1 : 0, runs_first = stage.is_last() ? tied : 0;
  if (std::cmp_not_equal(stage.runs.size(), virtual_stages + runs_first))
    return fmt::format("pipeline stage {} has {} virtual stages: expected {}", stage.index, stage.runs.size(),
                       virtual_stages + runs_first);
  if (stage.run_count != stage.count * virtual_stages + tied)
    return fmt::format("a pipeline of {} pipeline stages has {} virtual stages: expected {}", stage.count,
                       stage.run_count, stage.count * virtual_stages + tied);
  for (std::size_t i = 0; i < stage.runs.size(); ++i) {
    const VirtualStage& run = stage.runs[i];
    const int32_t round = static_cast<int32_t>(i) - runs_first;
    const int32_t index = round < 0 ? 0 : round * stage.count + stage.index + tied;
    if (run.index != index)
      return fmt::format("pipeline stage {} runs virtual stage {}: expected virtual stage {}", stage.index, run.index,
                         index);
    if (run.first_use < 0 || run.end_use <= run.first_use || std::cmp_greater(run.end_use, uses))
      return fmt::format("virtual stage {} has uses {} to {}: expected one or more of the uses 0 to {}", run.index,
                         run.first_use, int64_t{run.end_use} - 1, uses - 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid_tables(const Plan& plan) {
  for (const Topology* topology : {&plan.topology, &plan.world, &plan.data_topology}) {
    if (Defective found = invalid_topology(*topology)) return found;
  }
  if (Defective found = refusal([&] { plan.model.check(); })) return found;
  return invalid_flats(plan);
}

std::optional<std::string> invalid_stage(const Plan& plan) {
  const PipelineStage& stage = plan.stage;
  if (!in_range(stage.index, static_cast<std::size_t>(std::max(stage.count, 0))) || plan.policy.pipeline != stage.count)
    return fmt::format(
        "the plan is for pipeline stage {} in a pipeline of {} pipeline stages, but Policy::pipeline is {}",
        stage.index, stage.count, plan.policy.pipeline);
  if (plan.unit_is_here.size() != plan.model.units.size())
    return fmt::format("Plan::unit_is_here has {} entries: expected {}", plan.unit_is_here.size(),
                       plan.model.units.size());
  if (plan.schedule.micro_batch_count != plan.policy.micro_batch_count)
    return fmt::format("the schedule has {} micro-batches, but the policy has {}", plan.schedule.micro_batch_count,
                       plan.policy.micro_batch_count);
  const std::vector<int>& recompute = plan.policy.recompute_by_stage;
  if (!recompute.empty() && std::cmp_not_equal(recompute.size(), stage.count))
    return fmt::format("Policy::recompute_by_stage has {} numbers: expected {}", recompute.size(), stage.count);
  if (plan.policy.virtual_stages < 1 || plan.policy.virtual_stages > std::ssize(plan.model.uses))
    return fmt::format("the policy has {} virtual stages: expected 1 to {}", plan.policy.virtual_stages,
                       plan.model.uses.size());
  return invalid_runs(stage, plan.policy.virtual_stages, plan.model.uses.size());
}

std::optional<std::string> invalid_order(const Plan& plan) {
  const Policy& policy = plan.policy;
  if (policy.micro_batch_count < 1)
    return fmt::format("the number of micro-batches is {}: expected 1 or more", policy.micro_batch_count);
  if ((policy.evaluation || policy.replay) && policy.micro_batch_count > 1)
    return fmt::format("{} has {} micro-batches: expected 1", policy.replay ? "a replay" : "an evaluation",
                       policy.micro_batch_count);
  if (policy.evaluation && policy.replay) return "the plan is both an evaluation and a replay: expected at most one";
  if (policy.evaluation || policy.pass_order.empty()) return std::nullopt;
  for (std::size_t rank = 0; rank < policy.pass_order.size(); ++rank) {
    const auto& actions = policy.pass_order[rank];
    const auto other = std::ranges::find_if(
        actions, [](const PipelineAction& action) { return action.pass > PassKind::kBackwardWeights; });
    if (other != actions.end())
      return fmt::format("action {} in the pass order of rank {} has an unknown kind of pass", other - actions.begin(),
                         rank);
  }
  // Checks the order without the passes of tied ends, which pass_order_of() adds.
  return refusal([&] {
    aliquot::check(
        policy.pass_order,
        {.ranks = policy.pipeline, .micro_batches = policy.micro_batch_count, .virtual_stages = policy.virtual_stages});
  });
}

}  // namespace aliquot
