#pragma once
// The choice of everything that a policy leaves open, with or without a memory budget.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// Makes the plans of all pipeline stages. If the policy has no cut, chooses one. With PipelineSchedule::kAuto,
/// chooses the fastest schedule, by simulation with `cost`, of those that fit the budget. Of schedules whose times
/// differ by at most 1 %, takes the one that needs the least memory. If the policy has a cut or several virtual
/// stages, considers only schedules with that number of virtual stages. With a budget, also chooses what
/// plan_pipeline_within() chooses. Plan::choice describes the choices. `budget_bytes`: per rank, or 0 for no budget.
/// Throws what plan_pipeline() and plan_pipeline_within() throw.
std::vector<Plan> choose_plans(int64_t budget_bytes, const ModelSpec& model, const Policy& policy,
                               const Topology& topology, const CostModel& cost);

}  // namespace aliquot
