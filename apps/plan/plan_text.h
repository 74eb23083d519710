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

/// A plan at one ZeRO stage, with its memory and its simulated step.
struct PlannedRun {
  Plan plan;  // the plan of the pipeline stage with the highest peak
  Account account;
  Timeline timeline;                // a step on the pipeline stage of `plan`
  std::vector<Plan> stages;         // the plans of all pipeline stages
  std::vector<Timeline> timelines;  // a step on each pipeline stage
  int64_t parameters = 0;
  double tokens = 0;                    // tokens per step over all ranks
  std::optional<int64_t> largest = {};  // parameters of the largest model that fits in --device-memory
};

/// Whether the simulated times are part of the output: with --machine, and always with a pipeline.
bool is_timed(const PlanOptions& options, const PlannedRun& outcome);

/// Returns a list for one ZeRO stage, or, for several, a table at most 100 characters wide. `outcomes` must not be
/// empty.
std::string plan_text(const PlanOptions& options, std::span<const PlannedRun> outcomes);

}  // namespace aliquot
