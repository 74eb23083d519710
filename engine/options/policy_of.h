#pragma once
// The part of EngineOptions that a schedule depends on.

#include "engine/options.h"
#include "engine/plan/policy.h"

namespace aliquot {

Policy policy_of(const EngineOptions& options);

}  // namespace aliquot
