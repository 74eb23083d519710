#pragma once
// One step of a run, operation by operation, as --metrics keeps it for aliquot report.

#include "apps/metrics/metrics.h"
#include "apps/models/parts.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// {"titles": [..], "lanes": [..], "bytes": {"parameters": [..], ..}}, a member an operation, in issue order; categories that
/// a step never holds are left out. Null for a step of more operations than anybody could look at.
Json step_plan_json(const Plan& plan);

/// {"start_seconds": [..], "end_seconds": [..], "step_seconds": .., "hidden_share": .., "part_seconds": {"products": .., ..}};
/// null where nothing was recorded, or where the plan is not kept either. `parts`: the model's, of the same step.
Json step_times_json(const Timeline& timeline, const PartSeconds& parts);

}  // namespace aliquot
