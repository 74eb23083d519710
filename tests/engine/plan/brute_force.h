#pragma once
// A brute-force reference for the validator's race check: all ranks, three steps, every byte and every pair of
// accesses.

#include <string>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

/// Describes the first race found: two operations access the same byte of one rank's memory, at least one of them
/// writes, and nothing orders them. Empty if there is none. Waits must point to earlier operations. Only for small
/// plans, because it compares all pairs.
std::string find_race(const Plan& plan);

}  // namespace aliquot::testing
