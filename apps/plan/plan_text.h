#pragma once
// The printed form of plans.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/plan/plan_options.h"
#include "engine/cost/simulate.h"
#include "engine/plan/schedule.h"

namespace aliquot {

/// The memory that a rank has.
struct RankMemoryLimit {
  int64_t bytes = 0;
  std::string source;  // for example "a GPU of dgx-h100"
};

/// A plan at one ZeRO stage, with its memory and its simulated step.
struct PlannedRun {
  Plan plan;  // the plan of the pipeline stage with the highest peak
  Account account;
  Timeline timeline;                // a step on the pipeline stage of `plan`
  std::vector<Plan> stages;         // the plans of all pipeline stages
  std::vector<Timeline> timelines;  // a step on each pipeline stage
  int64_t parameters = 0;
  double tokens = 0;                          // tokens per step over all ranks
  std::optional<int64_t> largest = {};        // parameters of the largest model that fits in --device-memory
  std::optional<RankMemoryLimit> limit = {};  // unset if the memory of the machine is unknown
  std::string refusal = {};                   // why no plan meets --memory-budget

  /// The memory of a rank of the pipeline stage that needs the most.
  int64_t rank_bytes() const;
  /// Whether a rank of every pipeline stage has enough memory, or the memory of the machine is unknown.
  bool fits() const { return !limit || rank_bytes() <= limit->bytes; }
};

/// Whether the simulated times are part of the output: with --machine, and always with a pipeline.
bool is_timed(const PlanOptions& options, const PlannedRun& outcome);

/// Returns a list for one ZeRO stage, or, for several, a table at most 100 characters wide. `outcomes` must not be
/// empty.
std::string plan_text(const PlanOptions& options, std::span<const PlannedRun> outcomes);

}  // namespace aliquot
