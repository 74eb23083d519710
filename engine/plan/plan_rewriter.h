#pragma once
// A hook for tests: replaces the plans of engines by other plans of the same step.

#include <functional>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Changes the plans of all pipeline stages, in order, of training or of an evaluation.
using PlanRewriter = std::function<void(std::vector<Plan>& stages)>;

/// Makes all engines of this process change their plans with `rewriter` before they prove and run them. Null: engines
/// run the plans of the planner. Call it while no engine exists.
void set_plan_rewriter(PlanRewriter rewriter);

/// Applies the rewriter, if there is one.
void rewrite_plans(std::vector<Plan>& stages);

}  // namespace aliquot
