#pragma once
// What a plan costs, in one line.

#include <iosfwd>

#include "engine/plan/schedule.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// "ZeRO stage 3 on 4 ranks, each: parameters 2.00 MiB, ...; at most 9.13 MiB at once, at backward h.3": each category's
/// peak, then that of their sum; and what was chosen to meet a budget.
std::ostream& operator<<(std::ostream& to, const Plan& plan);

}  // namespace aliquot
#pragma GCC visibility pop
