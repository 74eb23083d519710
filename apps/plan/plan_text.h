#pragma once
// What a plan says of itself to people.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "apps/plan/plan_options.h"
#include "engine/cost/simulate.h"
#include "engine/plan/schedule.h"

namespace aliquot {

/// A run that was planned, at one stage.
struct PlannedRun {
  Plan plan;
  Account account;
  Timeline timeline;
  int64_t parameters = 0;
  double tokens = 0;  // of all ranks, a step
  std::optional<int64_t> largest;
};

/// One stage as a list, several as a table of at most 100 columns; there is one at least.
std::string plan_text(const PlanOptions& options, std::span<const PlannedRun> outcomes);

}  // namespace aliquot
