#pragma once
// Conversion of EngineOptions to the Policy of the planner.

#include "engine/options.h"
#include "engine/plan/policy.h"

namespace aliquot {

Policy policy_of(const EngineOptions& options);

}  // namespace aliquot
