#include "engine/choose/budget.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <optional>

#include "engine/choose/pipeline_cut.h"
#include "engine/plan/pipeline.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

int recomputable_uses(const ModelSpec& model) {
  return static_cast<int>(std::ranges::count_if(model.activations.uses, &UseActivations::recomputable));
}

/// Returns for each pipeline stage the number of its recomputable uses.
std::vector<int> recomputable_uses_by_stage(const ModelSpec& model, const Policy& policy) {
  std::vector<int> counts;
  for (const PipelineStage& stage : pipeline_stages(model, policy)) {
    int& count = counts.emplace_back(0);
    if (model.activations.uses.empty()) continue;
    for (const VirtualStage& run : stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) count += model.activations.uses[use].recomputable;
    }
  }
  return counts;
}

/// Describes how the pipeline stages gather. Pipeline stages within one node can gather views. Those that span nodes
/// gather copies.
std::string gathers(const std::vector<Plan>& stages) {
  const int64_t views = std::ranges::count_if(stages, [](const Plan& stage) { return stage.schedule.view; });
  if (views == 0) return "gathers as copies";
  if (views == std::ssize(stages)) return "gathers as views";
  return fmt::format("gathers as views on {} of {} pipeline stages", views, stages.size());
}

std::string choices(const std::vector<Plan>& stages) {
  const Policy& policy = stages.front().policy;
  const ModelSpec& model = stages.front().model;
  const std::size_t use_count = model.uses.size();
  std::vector<std::string> parts;
  if (policy.zero_stage == 3) {
    parts.push_back(fmt::format("{}, prefetch {}, {} of {} uses kept gathered after forward", gathers(stages),
                                policy.prefetch, policy.keep_gathered, use_count));
    if (policy.gather_for == kGatherForStep) parts.emplace_back("units gathered once per step");
  }
  if (policy.offload_state == Offload::kHost) parts.emplace_back("optimizer state in the host's memory");
  int64_t recomputed = 0;
  for (const Plan& stage : stages) recomputed += std::ranges::count(recomputed_uses(stage), true);
  if (recomputed > 0) parts.push_back(fmt::format("{} of {} uses recomputed", recomputed, use_count));
  if (parts.empty() && recomputable_uses(model) > 0) return "nothing recomputed";
  return parts.empty() ? "all options unchanged" : fmt::format("{}", fmt::join(parts, ", "));
}

/// Returns the values of keep_gathered to try: the number of uses, a half of it, a quarter, and so on, and 0.
std::vector<int> keep_gathered_counts(const Policy& policy, std::size_t use_count) {
  std::vector<int> counts = {0};
  if (policy.zero_stage < 3) return counts;
  for (auto count = static_cast<int>(use_count); count > 0; count /= 2) counts.push_back(count);
  return counts;
}

std::vector<int> gather_for_choices(const Policy& policy) {
  const bool chooses = policy.gather_for == kGatherForAuto && policy.zero_stage == 3 && policy.micro_batch_count > 1;
  if (chooses) return {kGatherForPass, kGatherForStep};
  return {policy.gather_for};
}

std::vector<GatherMode> gather_modes(const Policy& policy) {
  if (policy.zero_stage < 3 || policy.gather != GatherMode::kAuto) return {policy.gather};
  return {GatherMode::kAuto, GatherMode::kCopy};
}

/// Returns the values of Policy::offload_state to try. On GPUs, the budget does not include host memory, so offload to
/// the host helps to meet it. On hosts, the budget includes host memory, so offload does not help.
std::vector<Offload> state_offload_choices(const Policy& policy, const Topology& topology) {
  if (policy.offload_state != Offload::kNone || !topology.has_gpus()) return {policy.offload_state};
  return {Offload::kNone, Offload::kHost};
}

std::vector<Policy> candidates(const Policy& policy, const Topology& topology, std::size_t use_count) {
  static constexpr int kPrefetch[] = {0, 1, 2, 3};
  std::vector<Policy> all;
  for (const Offload state : state_offload_choices(policy, topology)) {
    for (const GatherMode gather : gather_modes(policy)) {
      for (const int prefetch : kPrefetch) {
        for (const int gather_for : gather_for_choices(policy)) {
          for (const int kept : keep_gathered_counts(policy, use_count)) {
            if (gather_for == kGatherForStep && kept > 0) continue;  // all units stay gathered, so `kept` has no effect
            all.push_back(policy);
            all.back().gather = gather;
            all.back().prefetch = prefetch;
            all.back().keep_gathered = kept;
            all.back().gather_for = gather_for;
            all.back().offload_state = state;
          }
        }
      }
    }
  }
  return all;
}

struct Candidate {
  std::vector<Plan> stages;
  int64_t bytes;  // bytes per rank on the pipeline stage that needs the most
  double seconds;
};

int64_t most_rank_bytes(const std::vector<Plan>& stages) {
  int64_t most = 0;
  for (const Plan& plan : stages) most = std::max(most, rank_bytes(plan));
  return most;
}

bool better(const Candidate& a, const std::optional<Candidate>& b) {
  if (!b) return true;
  return a.seconds != b->seconds ? a.seconds < b->seconds : a.bytes < b->bytes;
}

void set_recompute(Policy& policy, const std::vector<int>& by_stage) {
  policy.recompute = std::ranges::max(by_stage);
  if (by_stage.size() > 1) policy.recompute_by_stage = by_stage;
}

struct SearchInput {
  int64_t budget_bytes;
  Planner planner;

  const ModelSpec& model() const { return planner.model; }
};

class BudgetSearch {
 public:
  explicit BudgetSearch(const SearchInput& in) : budget_bytes_(in.budget_bytes), planner_(in.planner) {}

  std::optional<Candidate> best, fastest, smallest;

  /// Finds the smallest numbers of recomputed uses with which a plan fits, then the fastest plan with these numbers.
  /// Minimizes recompute first, because its cost is certain, while the benefit of prefetch is only simulated.
  void run(Policy policy) {
    if (policy.recompute == kRecomputeAsNeeded) set_recompute(policy, least_recompute(policy));
    for (const Policy& each : candidates(policy, planner_.topology, planner_.model.uses.size())) consider(each);
  }

 private:
  Candidate candidate(const Policy& policy) const {
    Candidate made{planner_.plan(policy), 0, 0};
    made.bytes = most_rank_bytes(made.stages);
    for (const Timeline& stage : simulate(made.stages, planner_.cost))
      made.seconds = std::max(made.seconds, stage.step_seconds);
    return made;
  }

  /// Makes the plan for `policy`, and updates `best`, `fastest` and `smallest`.
  void consider(const Policy& policy) {
    Candidate made = candidate(policy);
    if (!smallest || made.bytes < smallest->bytes) smallest = made;
    if (better(made, fastest)) fastest = made;
    if (made.bytes <= budget_bytes_ && better(made, best)) best = std::move(made);
  }

  /// Returns for each pipeline stage the smallest number of recomputed uses with which the stage fits. If no plan fits,
  /// returns the number of recomputable uses of each stage. Tries only plans without prefetch and without units that
  /// stay gathered, because they need the least memory. The memory of a stage does not depend on how many uses other
  /// stages recompute.
  std::vector<int> least_recompute(const Policy& policy) const {
    const auto total = [](const std::vector<int>& counts) { return std::accumulate(counts.begin(), counts.end(), 0); };
    const std::vector<int> most = recomputable_uses_by_stage(planner_.model, policy);
    if (total(most) == 0) return most;
    std::optional<std::vector<int>> least;
    for (const Policy& each : candidates(policy, planner_.topology, planner_.model.uses.size())) {
      if (each.prefetch > 0 || each.keep_gathered > 0 || each.gather_for == kGatherForStep) continue;
      const auto counts = least_recompute(each, most);
      if (counts && (!least || total(*counts) < total(*least))) least = counts;
    }
    return least.value_or(most);
  }

  /// Returns for each pipeline stage the smallest number of recomputed uses with which the stage fits under `policy`.
  /// Runs a binary search for all stages at the same time, each from 0 to the stage's element of `enough`. Returns
  /// nullopt if a stage does not fit even with that number of recomputed uses.
  std::optional<std::vector<int>> least_recompute(const Policy& policy, std::vector<int> enough) const {
    std::vector<int> least(enough.size(), 0);
    const std::vector<bool> fit_without = stages_that_fit(policy, least), fit = stages_that_fit(policy, enough);
    for (std::size_t s = 0; s < enough.size(); ++s) {
      if (fit_without[s]) enough[s] = 0;
      if (!fit_without[s] && !fit[s]) return std::nullopt;
    }
    while (least != enough) {
      std::vector<int> middle;
      for (std::size_t s = 0; s < least.size(); ++s) middle.push_back(least[s] + (enough[s] - least[s]) / 2);
      const std::vector<bool> fits = stages_that_fit(policy, middle);
      for (std::size_t s = 0; s < least.size(); ++s) {
        if (fits[s])
          enough[s] = middle[s];
        else
          least[s] = std::min(middle[s] + 1, enough[s]);
      }
    }
    return least;
  }

  std::vector<bool> stages_that_fit(Policy policy, const std::vector<int>& recompute) const {
    set_recompute(policy, recompute);
    std::vector<bool> fits;
    for (const Plan& stage : planner_.plan(policy)) fits.push_back(rank_bytes(stage) <= budget_bytes_);
    return fits;
  }

  int64_t budget_bytes_;
  Planner planner_;
};

}  // namespace

int64_t rank_bytes(const Plan& plan) {
  // Returns the size of `space` if it counts as memory of the rank, otherwise 0. Host memory counts only without GPUs,
  // and files never count.
  const auto home = [&](Offload to, Space space) {
    return to == Offload::kHost && !plan.topology.has_gpus() ? plan.schedule.bytes(space) : 0;
  };
  const int64_t step_bytes = plan.schedule.bytes(Space::kArena) +
                             plan.schedule.bytes(Space::kSharedRange) / plan.topology.rank_count() +
                             home(plan.policy.offload_state, Space::kOffloadedState) +
                             home(plan.policy.offload_parameters, Space::kOffloadedParameters);
  return std::max(step_bytes, persistent_bytes(plan.schedule) + plan.schedule.stream_bytes);
}

Plan plan_within(int64_t budget_bytes, const ModelSpec& model, const Policy& policy, const Topology& topology,
                 const CostModel& cost) {
  return std::move(plan_pipeline_within(budget_bytes, model, policy, topology, cost).front());
}

namespace {

/// Runs the search with the cut whose slowest stage takes the least time. If the fastest plan does not fit, repeats the
/// search with cuts that give fewer uses to stages that need too much memory. If `policy` leaves the number of
/// recomputed uses open, first looks for cuts that need no recompute. If there are none, looks for cuts that may
/// recompute all uses.
void search_cuts(BudgetSearch& search, const SearchInput& in, Policy policy) {
  constexpr int kMostCuts = 4;
  policy.pipeline_cut = cut_pipeline(in.model(), policy, in.planner.cost);
  search.run(policy);
  std::vector<PipelineCut> tried = {policy.pipeline_cut};
  const bool open = policy.recompute == kRecomputeAsNeeded && recomputable_uses(in.model()) > 0;
  Policy smallest = policy;
  for (const int recompute : open ? std::vector{0, kRecomputeAll} : std::vector{policy.recompute}) {
    smallest.recompute = recompute;
    // cut_within() can estimate memory only for pipeline stages with one virtual stage.
    for (int i = 1; i < kMostCuts && policy.virtual_stages == 1 && search.fastest->bytes > in.budget_bytes; ++i) {
      smallest.pipeline_cut = policy.pipeline_cut;
      const SmallestPlans plans(in.planner, smallest);
      policy.pipeline_cut = cut_within(in.budget_bytes, plans, in.planner.cost);
      if (std::ranges::find(tried, policy.pipeline_cut) != tried.end()) break;
      search.run(policy);
      tried.push_back(policy.pipeline_cut);
    }
    if (search.best) return;
  }
  smallest.pipeline_cut = search.smallest->stages.front().policy.pipeline_cut;
  policy.pipeline_cut = improved_cut(in.budget_bytes, in.planner, smallest);
  search.run(policy);
}

BudgetSearch search_plans(const SearchInput& in, const Policy& policy) {
  BudgetSearch search(in);
  if (policy.pipeline > 1 && policy.pipeline_cut.empty()) {
    search_cuts(search, in, policy);
  } else {
    search.run(policy);
  }
  return search;
}

/// Runs the search with the pass times of the cost model. If no plan fits, also runs it with default times, because
/// stages may then receive later, and thus need less memory.
BudgetSearch search_with_pass_times(int64_t budget_bytes, Planner planner, const Policy& policy) {
  BudgetSearch timed = search_plans({budget_bytes, planner}, policy);
  if (timed.best || policy.pipeline == 1) return timed;
  planner.timed = false;
  BudgetSearch untimed = search_plans({budget_bytes, planner}, policy);
  if (untimed.smallest->bytes < timed.smallest->bytes) return untimed;
  return timed;
}

}  // namespace

std::vector<Plan> plan_pipeline_within(int64_t budget_bytes, const ModelSpec& model, const Policy& policy,
                                       const Topology& topology, const CostModel& cost) {
  model.check();
  BudgetSearch search = search_with_pass_times(budget_bytes, {model, topology, cost}, policy);
  std::optional<Candidate>&best = search.best, &fastest = search.fastest, &smallest = search.smallest;
  const auto describe = [](const Candidate& c) { return choices(c.stages); };
  if (!best) {
    throw UnavailableError(fmt::format(
        "EngineOptions::memory_budget_bytes is {}, but the smallest plan found needs {} ({} bytes) per rank, with {}: "
        "increase the budget, or use more ranks, a higher ZeRO stage{} a narrower precision{}",
        format_bytes(budget_bytes), format_bytes(smallest->bytes), smallest->bytes, describe(*smallest),
        model.activations.uses.empty() ? " or" : ",",
        model.activations.uses.empty() ? "" : " or a smaller micro-batch"));
  }
  std::string& choice = best->stages.front().choice;
  choice = fmt::format(
      "{}: {} of the budget of {} per rank, {:.3g} s per step in simulation (rates: EngineOptions::cost, by default a "
      "typical machine)",
      describe(*best), format_bytes(best->bytes), format_bytes(budget_bytes), best->seconds);
  if (fastest->bytes > budget_bytes && fastest->seconds < best->seconds) {
    choice += fmt::format("; the fastest plan ({}) would need {} and take {:.3g} s per step", describe(*fastest),
                          format_bytes(fastest->bytes), fastest->seconds);
  }
  for (Plan& plan : best->stages) plan.choice = best->stages.front().choice;
  return std::move(best->stages);
}

}  // namespace aliquot
