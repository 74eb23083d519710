#include "engine/choose/pipeline_cut.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "engine/choose/budget.h"
#include "engine/plan/pipeline.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The maximum time and memory of each pipeline stage.
struct Limits {
  double seconds;
  int64_t bytes;
};

/// The memory of one stage while uses are added to it, from the last to the first.
class StageBytes {
 public:
  StageBytes(const CutProblem& problem, std::size_t stage)
      : in_flight_(problem.in_flight[stage]),
        recompute_(problem.recompute),
        bytes_(problem.other_bytes.empty() ? 0 : problem.other_bytes[stage]) {}

  /// Adds the use that precedes the uses of the stage, and returns the bytes of the stage. If the stage now has more
  /// recomputable uses than it recomputes, the last of these keeps its activations from now on. Recomputed activations
  /// exist for one use at a time.
  int64_t add(const UseLoad& use) {
    bytes_ += use.persistent_bytes + use.saved_bytes * in_flight_;
    if (use.recomputable_bytes > 0) {
      recomputed_.push_back(use.recomputable_bytes);
      sorted_.insert(use.recomputable_bytes);
    }
    if (std::cmp_greater(recomputed_.size(), recompute_)) {
      bytes_ += recomputed_.front() * in_flight_;
      sorted_.erase(sorted_.find(recomputed_.front()));
      recomputed_.pop_front();
    }
    return bytes_ + (sorted_.empty() ? 0 : *sorted_.rbegin());
  }

 private:
  int64_t in_flight_;
  int recompute_;
  int64_t bytes_;                   // excludes the recomputable bytes of recomputed uses
  std::deque<int64_t> recomputed_;  // recomputable bytes of each recomputed use, from the last use to the first
  std::multiset<int64_t> sorted_;   // the values of recomputed_, sorted
};

/// Fills the stages from the last to the first, each with as many uses as the limits allow. Any cut within the limits
/// can be changed into this one by moving uses to later stages, so the result is nullopt only if there is no such cut.
std::optional<PipelineCut> fill(const CutProblem& problem, const Limits& limits) {
  const auto stages = static_cast<int>(problem.in_flight.size());
  PipelineCut cut(problem.in_flight.size(), 0);
  auto next = static_cast<int>(problem.uses.size()) - 1;
  for (int stage = stages - 1; stage >= 0; --stage) {
    double seconds = 0;
    StageBytes bytes(problem, static_cast<std::size_t>(stage));
    int& count = cut[static_cast<std::size_t>(stage)];
    for (; next >= stage; --next, ++count) {  // leaves at least one use for each earlier stage
      const UseLoad& use = problem.uses[static_cast<std::size_t>(next)];
      seconds += use.seconds;
      if (seconds > limits.seconds || bytes.add(use) > limits.bytes) break;
    }
    if (count == 0) return std::nullopt;
  }
  return next < 0 ? std::optional(cut) : std::nullopt;
}

/// A binary search. Returns the smallest non-negative number below `high` for which fill() succeeds with
/// limits_of(number), or `high` if there is none. Non-negative doubles have the same order as their bits, so the search
/// serves both bytes and seconds.
template <typename LimitsOf>
uint64_t smallest(const CutProblem& problem, uint64_t high, const LimitsOf& limits_of) {
  uint64_t low = 0;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (fill(problem, limits_of(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

PipelineCut cut_pipeline(const CutProblem& problem) {
  if (problem.in_flight.empty()) throw UsageError("the number of pipeline stages is 0: expected 1 or more");
  if (problem.uses.size() < problem.in_flight.size())
    throw UsageError(
        fmt::format("there are {} pipeline stages: expected at most {}, the number of parts into which the model can "
                    "be divided",
                    problem.in_flight.size(), problem.uses.size()));
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();
  const int64_t budget = problem.budget_bytes.value_or(kMaxBytes);
  if (!fill(problem, {kNoLimit, budget})) {
    const uint64_t least = smallest(problem, static_cast<uint64_t>(kMaxBytes), [&](uint64_t bytes) {
      return Limits{kNoLimit, static_cast<int64_t>(bytes)};
    });
    return *fill(problem, {kNoLimit, static_cast<int64_t>(least)});
  }
  const uint64_t seconds = smallest(problem, std::bit_cast<uint64_t>(kNoLimit), [&](uint64_t bits) {
    return Limits{std::bit_cast<double>(bits), budget};
  });
  return *fill(problem, {std::bit_cast<double>(seconds), budget});
}

namespace {

/// The loads of all uses of a model. The first `tied` uses are tied to later uses, so the last stage runs them.
/// CutProblem excludes these uses, but PipelineCut counts them as uses of the first stage.
struct ModelLoads {
  std::vector<UseLoad> loads;
  int tied = 0;

  std::span<const UseLoad> cut_uses() const { return std::span(loads).subspan(static_cast<std::size_t>(tied)); }
  PipelineCut with_tied_uses(PipelineCut cut) const {
    cut.front() += tied;
    return cut;
  }
};

double use_seconds(const ModelSpec& model, std::size_t use, const CostModel& cost) {
  if (use < cost.uses.size()) return cost.uses[use].forward_seconds + cost.uses[use].backward_seconds;
  double elements = 0;
  for (const UnitId unit : model.uses[use]) {
    for (const ParameterSpec& parameter : model.units[unit].parameters)
      elements += static_cast<double>(parameter.tensor.element_count());
  }
  return elements;
}

/// Returns the loads, with seconds but without memory. The last stage runs the tied uses, so the load of the last use
/// includes their seconds. If `cost` has no times of uses, UseLoad::seconds is the number of elements of the parameters
/// instead. Tied uses then add nothing, because the elements of tied units are already counted in the last use.
ModelLoads loads_of(const ModelSpec& model, int stages, const CostModel& cost) {
  ModelLoads all;
  for (std::size_t use = 0; use < model.uses.size(); ++use)
    all.loads.push_back({.seconds = use_seconds(model, use, cost)});
  const auto uses = static_cast<int32_t>(all.loads.size());
  all.tied = stages > 1 ? tied_uses(model, std::max(uses - stages, 0), uses - 1) : 0;
  for (int use = 0; use < all.tied && !cost.uses.empty(); ++use)
    all.loads.back().seconds += all.loads[static_cast<std::size_t>(use)].seconds;
  return all;
}

/// Adds to `loads` the memory that each use needs according to the plans `stages`. The persistent buffers of a unit
/// count as memory of the last use of that unit.
void add_memory(const std::vector<Plan>& stages, std::vector<UseLoad>& loads) {
  const ModelSpec& model = stages.front().model;
  std::vector<std::size_t> last_use(model.units.size(), 0);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) last_use[unit] = use;
  }
  for (const Plan& stage : stages) {
    for (const PlannedBuffer& buffer : stage.schedule.buffers) {
      if (!buffer.always || info(buffer.role).owner != Owner::kFlat) continue;
      loads[last_use[stage.flats[buffer.flat].unit]].persistent_bytes += buffer.size_bytes;
    }
    for (const VirtualStage& run : stage.stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) {
        const UseActivations& of = model.activations.uses[use];
        UseLoad& load = loads[static_cast<std::size_t>(use)];
        load.saved_bytes = of.output_bytes + (of.recomputable ? 0 : of.kept_bytes);
        load.recomputable_bytes = of.recomputable ? of.kept_bytes : 0;
      }
    }
  }
}

}  // namespace

namespace {

/// Returns the cost that balanced_cut() decreases, then the sum of the squared times of stages and virtual stages. Of
/// two cuts with equal cost, the one with the smaller sum is better, because its times are more even. The next move is
/// then more likely to decrease the cost.
std::pair<double, double> imbalance(std::span<const UseLoad> uses, int pipeline, const PipelineCut& cut) {
  std::vector<double> of_stage(static_cast<std::size_t>(pipeline), 0.0);
  double slowest_positions = 0, slowest_of_position = 0, squares = 0;
  std::size_t use = 0;
  for (std::size_t run = 0; run < cut.size(); ++run) {
    const std::size_t stage = run % of_stage.size();
    double seconds = 0;
    for (int i = 0; i < cut[run]; ++i) seconds += uses[use++].seconds;
    of_stage[stage] += seconds;
    squares += seconds * seconds;
    slowest_of_position = std::max(stage == 0 ? 0.0 : slowest_of_position, seconds);
    if (stage + 1 == of_stage.size()) slowest_positions += slowest_of_position;
  }
  for (const double seconds : of_stage) squares += seconds * seconds;
  return {slowest_positions + std::ranges::max(of_stage), squares};
}

}  // namespace

PipelineCut balanced_cut(std::span<const UseLoad> uses, int pipeline, PipelineCut cut) {
  constexpr int kMostMoves = 1000;
  auto least = imbalance(uses, pipeline, cut);
  for (int moves = 0; moves < kMostMoves; ++moves) {
    const PipelineCut from = cut;
    for (std::size_t later = 1; later < from.size(); ++later) {
      for (const int moved : {-1, 1}) {
        PipelineCut neighbor = from;
        neighbor[later - 1] += moved;
        neighbor[later] -= moved;
        if (std::min(neighbor[later - 1], neighbor[later]) < 1) continue;
        const auto other = imbalance(uses, pipeline, neighbor);
        if (other >= least) continue;
        least = other;
        cut = std::move(neighbor);
      }
    }
    if (cut == from) break;
  }
  return cut;
}

PipelineCut cut_pipeline(const ModelSpec& model, const Policy& policy, const CostModel& cost) {
  check_virtual_stages(model, policy);
  const auto stages = static_cast<int>(virtual_stage_count(policy));
  const ModelLoads loads = loads_of(model, stages, cost);
  const std::vector<int> in_flight(static_cast<std::size_t>(stages), 1);
  PipelineCut cut = cut_pipeline({.uses = loads.cut_uses(), .in_flight = in_flight});
  if (policy.virtual_stages > 1) {
    // Also improves a second cut, which has about the same number of uses in each virtual stage.
    PipelineCut even;
    const auto uses = static_cast<int64_t>(loads.cut_uses().size());
    for (int64_t run = 0; run < stages; ++run)
      even.push_back(static_cast<int>((run + 1) * uses / stages - run * uses / stages));
    cut = balanced_cut(loads.cut_uses(), policy.pipeline, std::move(cut));
    even = balanced_cut(loads.cut_uses(), policy.pipeline, std::move(even));
    if (imbalance(loads.cut_uses(), policy.pipeline, even) < imbalance(loads.cut_uses(), policy.pipeline, cut))
      cut = std::move(even);
  }
  return loads.with_tied_uses(std::move(cut));
}

SmallestPlans::SmallestPlans(const Planner& planner, Policy policy) {
  policy.prefetch = 0;
  policy.keep_gathered = 0;
  stages = planner.plan(std::move(policy));
  for (const Plan& stage : stages) bytes.push_back(rank_bytes(stage));
}

PipelineCut cut_within(int64_t budget_bytes, const SmallestPlans& plans, const CostModel& cost) {
  const std::vector<Plan>& stages = plans.stages;
  ModelLoads loads = loads_of(stages.front().model, static_cast<int>(stages.size()), cost);
  add_memory(stages, loads.loads);
  const Policy& policy = stages.front().policy;
  const PassOrder order = pass_order_of(policy);
  CutProblem problem{.uses = loads.cut_uses(),
                     .in_flight = {},
                     .recompute = std::max(policy.recompute, 0),
                     .budget_bytes = budget_bytes};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    problem.in_flight.push_back(max_in_flight(order[s]));
    // Of this pipeline stage's virtual stages, all but the last have only tied uses, which the cut excludes.
    const VirtualStage& run = stages[s].stage.runs.back();
    StageBytes bytes({.uses = {}, .in_flight = problem.in_flight, .recompute = problem.recompute}, s);
    int64_t of_uses = 0;
    for (int32_t use = run.last_use(); use >= std::max(run.first_use, loads.tied); --use)
      of_uses = bytes.add(loads.loads[static_cast<std::size_t>(use)]);
    problem.other_bytes.push_back(plans.bytes[s] - of_uses);
  }
  return loads.with_tied_uses(cut_pipeline(problem));
}

PipelineCut improved_cut(int64_t budget_bytes, const Planner& planner, Policy policy) {
  constexpr int kMostPlans = 200;
  int plans = 0;
  // Returns the bytes of each pipeline stage, the largest first.
  const auto bytes_of = [&] {
    ++plans;
    std::vector<int64_t> bytes = SmallestPlans(planner, policy).bytes;
    std::ranges::sort(bytes, std::greater{});
    return bytes;
  };
  std::vector<int64_t> least = bytes_of();
  PipelineCut best = policy.pipeline_cut;
  while (plans < kMostPlans && least.front() > budget_bytes) {
    const PipelineCut from = best;
    for (std::size_t later = 1; later < from.size(); ++later) {
      for (const int moved : {-1, 1}) {
        policy.pipeline_cut = from;
        policy.pipeline_cut[later - 1] += moved;
        policy.pipeline_cut[later] -= moved;
        if (std::ranges::min(policy.pipeline_cut) < 1) continue;
        std::vector<int64_t> bytes = bytes_of();
        if (bytes >= least) continue;
        least = std::move(bytes);
        best = policy.pipeline_cut;
      }
    }
    if (best == from) break;
  }
  return best;
}

}  // namespace aliquot
