#pragma once
// The division of a model's uses into pipeline stages.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/choose/pass_times.h"
#include "engine/cost/simulate.h"
#include "engine/plan/model_spec.h"

namespace aliquot {

/// The load of one use on its pipeline stage.
struct UseLoad {
  double seconds = 0;              // time of forward and backward, for one micro-batch
  int64_t persistent_bytes = 0;    // parameters, gradients and optimizer state per rank
  int64_t saved_bytes = 0;         // activations kept even if the use is recomputed, per micro-batch
  int64_t recomputable_bytes = 0;  // activations kept until backward only if the use is not recomputed, per micro-batch
};

/// The number of consecutive uses on each pipeline stage, at least one.
using PipelineCut = std::vector<int>;

/// The uses of a model, to be divided into pipeline stages.
struct CutProblem {
  std::span<const UseLoad> uses;
  /// For each stage, the maximum number of micro-batches whose activations the stage keeps at the same time.
  std::vector<int> in_flight;
  std::vector<int64_t> other_bytes = {};  // memory of each stage that does not depend on the cut; empty: none
  int recompute = 0;  // number of recomputed uses per stage: the first recomputable uses of the stage
  std::optional<int64_t> budget_bytes = {};  // limit on the memory of each stage; empty: no limit
};

/// Returns a cut within the budget whose slowest stage takes the least possible time. If no cut is within the budget,
/// returns one whose largest stage needs the least possible memory. Of several such cuts, returns the one whose last
/// stages have the most uses, because early stages keep more micro-batches in flight. Throws UsageError if there are
/// fewer uses than stages. Takes time linear in the number of uses.
PipelineCut cut_pipeline(const CutProblem& problem);

/// Returns the cut of a model into the virtual stages of `policy` by the times of its uses in `cost`. If `cost` has no
/// times, the time of a use is assumed to be proportional to the elements of its parameters. Memory is not considered.
/// With several virtual stages per pipeline stage, improves the cut with balanced_cut(). Throws what
/// check_virtual_stages() throws.
PipelineCut cut_pipeline(const ModelSpec& model, const Policy& policy, const CostModel& cost);

/// Improves a cut into virtual stages, several for each of `pipeline` pipeline stages. The virtual stages with the same
/// position in their pipeline stages run at the same time, as one round. A step takes at least the sum, over all
/// rounds, of the time of the slowest virtual stage. It also takes at least the time of the slowest pipeline stage. The
/// function moves one use at a time across one boundary. Each move decreases the sum of these two lower bounds, or
/// keeps it and makes the times of stages and virtual stages more even.
PipelineCut balanced_cut(std::span<const UseLoad> uses, int pipeline, PipelineCut cut);

/// The plans of all pipeline stages, and the bytes per rank of each stage. The plans need the least memory, because
/// they have no prefetch, and no unit stays gathered after forward.
struct SmallestPlans {
  std::vector<Plan> stages;
  std::vector<int64_t> bytes = {};

  SmallestPlans(const Planner& planner, Policy policy);
};

/// Returns a cut whose estimated memory is at most `budget_bytes` per rank, if there is one, otherwise the cut that
/// needs the least memory. Of several cuts within the budget, returns the one whose slowest stage takes the least time.
/// Estimates memory from `plans`, which may have a different cut.
PipelineCut cut_within(int64_t budget_bytes, const SmallestPlans& plans, const CostModel& cost);

/// Improves the cut of `policy`. Each round plans all cuts that result from moving one use across one boundary, and
/// keeps the best. Stops at a cut that fits, at one that no such move improves, or after 200 plans.
PipelineCut improved_cut(int64_t budget_bytes, const Planner& planner, Policy policy);

}  // namespace aliquot
