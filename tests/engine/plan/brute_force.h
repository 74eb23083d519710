#pragma once
// A brute-force reference for the validator's checks of races and deadlocks: all ranks of all pipeline stages, three
// steps, every byte and every pair of accesses.

#include <set>
#include <string>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

/// Describes the first race found: two operations access the same byte of one rank's memory, at least one of them
/// writes, and nothing orders them. Returns an empty string if there is no race. Waits must refer to earlier
/// operations. Suitable for small plans only, because all pairs of accesses are compared.
std::string find_race(const Plan& plan);
/// Describes the first race in the plans of all pipeline stages, which are listed in order. Each pipeline stage issues
/// its sends and receives in order. If pipeline stages then wait for each other forever, describes the deadlock.
std::string find_race(const std::vector<Plan>& stages);

/// Returns the narrowest groups of each buffer of `plan`, which is one pipeline stage. Such a group contains all ranks
/// that access the buffer or take part in its transfer, and no group with fewer ranks does. For a buffer that no rank
/// accesses, returns all groups.
std::vector<std::set<GroupId>> narrowest_groups(const Plan& plan);

}  // namespace aliquot::testing
