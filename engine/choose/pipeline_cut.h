#pragma once
// The division of a model's uses into pipeline stages.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cost/simulate.h"
#include "engine/plan/model_spec.h"

namespace aliquot {

/// The load of one use on its pipeline stage.
struct UseLoad {
  double seconds = 0;              // forward and backward of one micro-batch
  int64_t persistent_bytes = 0;    // parameters, gradients and optimizer state per rank
  int64_t saved_bytes = 0;         // activations that one micro-batch keeps from forward to backward
  int64_t recomputable_bytes = 0;  // activations that are also kept, unless the use is recomputed
};

/// The number of consecutive uses on each pipeline stage. Every stage has at least one.
using PipelineCut = std::vector<int>;

/// The uses of a model, to be divided into pipeline stages.
struct CutProblem {
  std::span<const UseLoad> uses;
  std::vector<int> in_flight;             // by stage: maximum number of micro-batches whose activations the stage keeps
  std::vector<int64_t> other_bytes = {};  // by stage: memory that does not depend on the cut; empty: none
  int recompute = 0;                      // how many uses of each stage are recomputed: its first recomputable ones
  std::optional<int64_t> budget_bytes = {};  // limit on the memory of each stage; empty: no limit
};

/// Returns a cut with the smallest possible maximum of the stages' seconds, among the cuts within the budget. If no cut
/// is within the budget, returns one with the smallest possible maximum of the stages' bytes. Of several such cuts,
/// returns the one whose last stages have the most uses, because early stages keep more micro-batches in flight. Throws
/// UsageError if there are fewer uses than stages. Takes time linear in the number of uses.
PipelineCut cut_pipeline(const CutProblem& problem);

/// Returns the cut of a model into the virtual stages of `policy` by the times of its uses in `cost`. If `cost` has
/// none, uses take time in proportion to the elements of their parameters. Memory is not considered. With several
/// virtual stages per pipeline stage, balances both: see balanced_cut(). Throws what check_virtual_stages() throws.
PipelineCut cut_pipeline(const ModelSpec& model, const Policy& policy, const CostModel& cost);

/// Improves a cut into `pipeline` stages with several virtual stages each. All virtual stages in the same position of
/// their pipeline stages run at the same time, so a step takes at least the sum, over these positions, of the slowest
/// one. It also takes at least the time of the slowest pipeline stage. Moves one use at a time across one boundary, as
/// long as the sum of these two times decreases, or the loads become more even.
PipelineCut balanced_cut(std::span<const UseLoad> uses, int pipeline, PipelineCut cut);

/// The plans of all pipeline stages without prefetch and without kept units, which need the least memory, and the bytes
/// per rank of each stage.
struct SmallestPlans {
  std::vector<Plan> stages;
  std::vector<int64_t> bytes = {};

  SmallestPlans(const ModelSpec& model, Policy policy, const Topology& topology);
};

/// Returns a cut whose estimated memory is at most `budget_bytes` per rank, if there is one, otherwise the cut that
/// needs the least memory. Of several cuts within the budget, returns the one whose slowest stage takes the least time.
/// Estimates memory from `plans`, which may have a different cut.
PipelineCut cut_within(int64_t budget_bytes, const SmallestPlans& plans, const CostModel& cost);

/// Returns the cut of `policy` with improvements, each of which moves one use across one boundary. Plans all cuts that
/// differ by one such move. Stops at a cut that fits, at one that no single move improves, or after 200 plans.
PipelineCut improved_cut(int64_t budget_bytes, const ModelSpec& model, Policy policy, const Topology& topology);

}  // namespace aliquot
