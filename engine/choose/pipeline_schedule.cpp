#include "engine/choose/pipeline_schedule.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string>
#include <vector>

#include "engine/choose/budget.h"
#include "engine/choose/pass_times.h"
#include "engine/choose/pipeline_cut.h"
#include "engine/cost/prices.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::string describe(const Policy& policy) {
  const std::string_view schedule = name(policy.pipeline_schedule);
  return policy.virtual_stages == 1 ? std::string(schedule)
                                    : fmt::format("{} with {} virtual stages", schedule, policy.virtual_stages);
}

std::vector<Plan> plans_of(const MemoryLimit& limit, const ModelSpec& model, Policy policy, const Topology& topology,
                           const CostModel& cost) {
  if (limit.bytes > 0 && limit.kind == MemoryLimit::kBudget)
    return plan_pipeline_within(limit.bytes, model, policy, topology, cost);
  if (policy.pipeline > 1 && policy.pipeline_cut.empty()) policy.pipeline_cut = cut_pipeline(model, policy, cost);
  return Planner{model, topology, cost}.plan(std::move(policy));
}

/// Returns the policies to compare, one for each schedule. The first one is 1F1B, unless the policy has several virtual
/// stages.
std::vector<Policy> schedules(const ModelSpec& model, const Policy& policy) {
  constexpr int kMostVirtualStages = 4;
  const auto uses = static_cast<int64_t>(model.uses.size());
  const int cut = static_cast<int>(policy.pipeline_cut.size()) / policy.pipeline;
  const int given = policy.virtual_stages > 1 ? policy.virtual_stages : cut;  // 0: the policy does not say
  std::vector<Policy> all;
  const auto add = [&](PipelineSchedule schedule, int virtual_stages) {
    if (given != 0 && virtual_stages != given) return;
    all.push_back(policy);
    all.back().pipeline_schedule = schedule;
    all.back().virtual_stages = virtual_stages;
  };
  const bool can_split = std::ranges::any_of(model.activations.uses, &UseActivations::splits_backward);
  add(PipelineSchedule::k1F1B, 1);
  if (can_split) add(PipelineSchedule::kZeroBubble, 1);
  for (int v = 2; v <= std::max(kMostVirtualStages, given); ++v) {
    if (v == given || v * int64_t{policy.pipeline} <= uses) add(PipelineSchedule::kInterleaved, v);
  }
  add(PipelineSchedule::kGpipe, 1);
  return all;
}

struct Compared {
  std::vector<Plan> stages;
  double seconds = 0;
  int64_t bytes = 0;  // per rank: the maximum over the pipeline stages
};

Compared compared(std::vector<Plan> stages, const CostModel& cost) {
  Compared result{.stages = std::move(stages)};
  for (const Timeline& stage : simulate(result.stages, cost))
    result.seconds = std::max(result.seconds, stage.step_seconds);
  for (const Plan& stage : result.stages) result.bytes = std::max(result.bytes, rank_bytes(stage));
  return result;
}

/// Returns the schedule that needs the least memory, of those that fit the limit and take at most kTolerance times as
/// long as the fastest one. Simulated times are not exact enough to justify more memory for a smaller difference. If no
/// schedule fits, returns the one that needs the least memory.
Compared best_of(std::vector<Compared> all, const MemoryLimit& limit) {
  constexpr double kTolerance = 1.01;
  if (limit.bytes > 0) {
    const int64_t allowed = std::max(limit.bytes, std::ranges::min_element(all, {}, &Compared::bytes)->bytes);
    std::erase_if(all, [&](const Compared& each) { return each.bytes > allowed; });
  }
  const double fastest = std::ranges::min_element(all, {}, &Compared::seconds)->seconds;
  std::erase_if(all, [&](const Compared& each) { return each.seconds > kTolerance * fastest; });
  return std::move(*std::ranges::min_element(all, {}, &Compared::bytes));
}

}  // namespace

namespace {

std::vector<Plan> choose_schedule(const MemoryLimit& limit, const ModelSpec& model, const Policy& policy,
                                  const Topology& topology, const CostModel& cost) {
  if (policy.pipeline_schedule != PipelineSchedule::kAuto || policy.pipeline == 1 || !policy.pass_order.empty())
    return plans_of(limit, model, policy, topology, cost);
  std::vector<Compared> all;
  std::exception_ptr refusal, does_not_fit;  // the first error of each kind
  std::vector<std::string> results;
  for (const Policy& each : schedules(model, policy)) {
    try {
      Compared made = compared(plans_of(limit, model, each, topology, cost), cost);
      const bool fits = limit.bytes == 0 || made.bytes <= limit.bytes;
      results.push_back(fmt::format("{} {:.3g} s{}", describe(each), made.seconds, fits ? "" : " but does not fit"));
      all.push_back(std::move(made));
    } catch (const UnavailableError&) {
      results.push_back(describe(each) + " does not fit");
      if (!does_not_fit) does_not_fit = std::current_exception();
    } catch (const UsageError&) {  // for example, a unit would be on two virtual stages
      results.push_back(describe(each) + " is not possible");
      if (!refusal) refusal = std::current_exception();
    }
  }
  if (all.empty()) std::rethrow_exception(does_not_fit ? does_not_fit : refusal);
  std::vector<Plan> best = best_of(std::move(all), limit).stages;
  const std::string other = best.front().choice;
  const std::string choice =
      fmt::format("pipeline schedule {}, by simulated time and memory (time per step: {}){}{}",
                  describe(best.front().policy), fmt::join(results, ", "), other.empty() ? "" : "; ", other);
  for (Plan& plan : best) plan.choice = choice;
  return best;
}

double step_seconds(const std::vector<Plan>& stages, const CostModel& cost) {
  double seconds = 0;
  for (const Timeline& stage : simulate(stages, cost)) seconds = std::max(seconds, stage.step_seconds);
  return seconds;
}

}  // namespace

double replay_share(const std::vector<Plan>& stages, const CostModel& cost) {
  const int every = stages.front().policy.replay_every;
  if (every == 0) return 0;
  // Ranks meet before and after a replay, and to compare sums.
  constexpr int kMeetings = 3;
  const LinkCost& link = stages.front().world.one_node() ? cost.inside_node : cost.between_nodes;
  // The price assumes that no compute runs beside repeated sums.
  double repetitions = 0;
  for (const Plan& stage : stages) repetitions = std::max(repetitions, repetition_seconds(stage, cost));
  const double replay = step_seconds(replays_of(stages), cost) + repetitions + kMeetings * link.latency_seconds;
  const double step = step_seconds(stages, cost);
  return every < 0 ? replay / step : replay / (every * step + replay);
}

std::vector<Plan> choose_plans(const MemoryLimit& limit, const ModelSpec& model, const Policy& policy,
                               const Topology& topology, const CostModel& cost) {
  std::vector<Plan> stages = choose_schedule(limit, model, policy, topology, cost);
  if (policy.replay_every != kReplayAuto) return stages;
  // Replays take the share r / (n + r) of the time, if r is the time of a replay divided by that of a step.
  const double ratio = replay_share(stages, cost);
  const double every = std::ceil(ratio * (1 - kReplayShare) / kReplayShare);
  for (Plan& stage : stages) stage.policy.replay_every = static_cast<int>(std::clamp(every, 1.0, 1e6));
  return stages;
}

}  // namespace aliquot
