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
  double seconds = 0;            // forward and backward of one micro-batch
  int64_t persistent_bytes = 0;  // parameters, gradients and optimizer state per rank
  int64_t saved_bytes = 0;       // activations that one micro-batch keeps from forward to backward
};

/// The number of consecutive uses on each pipeline stage. Every stage has at least one.
using PipelineCut = std::vector<int>;

/// The uses of a model, to be divided into pipeline stages. `in_flight` has one entry for each stage: the maximum
/// number of micro-batches whose activations the stage keeps. `budget_bytes` limits the bytes of each stage, if it is
/// set.
struct CutProblem {
  std::span<const UseLoad> uses;
  std::vector<int> in_flight;
  std::optional<int64_t> budget_bytes = {};
};

/// Returns a cut with the smallest possible maximum of the stages' seconds, among the cuts within the budget. Of these
/// cuts, returns the one whose last stages have the most uses, because early stages keep more micro-batches in flight.
/// Throws UsageError if there are fewer uses than stages, or if no cut is within the budget; the message names the
/// smallest sufficient budget. Takes time linear in the number of uses.
PipelineCut cut_pipeline(const CutProblem& problem);

/// Returns the cut of a model into `stages` by the times of its uses in `cost`. If `cost` has none, uses take time in
/// proportion to the elements of their parameters. Memory is not considered.
PipelineCut cut_pipeline(const ModelSpec& model, int stages, const CostModel& cost);

/// Returns a cut whose estimated memory is at most `budget_bytes` per rank, or nullopt if there is none. Of these cuts,
/// returns the one whose slowest stage takes the least time. Estimates memory from `stages`, the plans of all stages
/// with another cut, which need `stage_bytes`.
std::optional<PipelineCut> cut_within(int64_t budget_bytes, const std::vector<Plan>& stages,
                                      std::span<const int64_t> stage_bytes, const CostModel& cost);

}  // namespace aliquot
