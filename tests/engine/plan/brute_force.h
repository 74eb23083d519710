#pragma once
// The plain reference for the validator's races: every rank, three steps, every byte, every pair.

#include <string>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

/// The first two operations found that touch the same byte of one rank's memory, one of them writing, with nothing to
/// say which is first; empty: there are none. Waits must point back. Small plans only: all pairs are compared.
std::string find_race(const Plan& plan);

}  // namespace aliquot::testing
