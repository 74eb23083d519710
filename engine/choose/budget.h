#pragma once
// The choice of a plan that fits a memory budget.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// Returns the memory of a rank for the plan: its arena, its part of the shared range, and host memory of offloaded
/// data if the rank computes on the host.
int64_t rank_bytes(const Plan& plan);

/// Returns the fastest plan, by simulation with `cost`, that needs at most `budget_bytes` per rank. Of equally fast
/// plans, returns the smallest. Considers only plans whose results are bitwise identical to those of `policy`. They
/// differ in prefetch, in keep_gathered, and in gathers as views or copies. They also differ in gather_for if that is
/// kGatherForAuto, and, on GPUs, in offload of optimizer state to host memory. If Policy::recompute is
/// kRecomputeAsNeeded, recomputes the smallest number of uses of each pipeline stage with which a plan fits.
/// Plan::choice describes the result. Throws UnavailableError, with the smallest budget for which a plan was found, if
/// no plan fits. Also throws what plan() throws.
Plan plan_within(int64_t budget_bytes, const ModelSpec& model, const Policy& policy, const Topology& topology,
                 const CostModel& cost);

/// Like plan_within(), but returns the plans of all pipeline stages. The stage that needs the most memory must meet the
/// budget. If the policy has no cut, tries the cut whose slowest stage takes the least time. Also tries other cuts if
/// the fastest plan with that cut does not meet the budget.
std::vector<Plan> plan_pipeline_within(int64_t budget_bytes, const ModelSpec& model, const Policy& policy,
                                       const Topology& topology, const CostModel& cost);

}  // namespace aliquot
