#pragma once
// The machine-readable forms of plans.

#include <span>
#include <string>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/plan/plan_text.h"
#include "engine/cost/trace.h"

namespace aliquot {

/// The JSON object of one plan.
Json plan_json(const PlanOptions& options, const PlannedRun& outcome);

/// Returns a table with a first row that names the columns, and one row for each plan. The names of nested keys
/// are joined by dots.
std::string plan_csv(const std::vector<Json>& plans);

/// Writes one line {"plan": ..} per plan for aliquot report. With a pipeline, it has the passes of the simulated step.
/// Throws UsageError if the file cannot be opened, and FaultError if it cannot be written.
void write_plan_metrics(const PlanOptions& options, std::span<const PlannedRun> outcomes);

/// Traces of the simulated step, one process for each pipeline stage. `outcome` must outlive them.
std::vector<RankTrace> simulated_traces(const PlannedRun& outcome);

}  // namespace aliquot
