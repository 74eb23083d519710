#pragma once
// A plan's memory in one line of text.

#include <iosfwd>

#include "engine/plan/schedule.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Prints the peak of each category, the peak of their sum, and the options that were chosen to meet a budget: "ZeRO
/// stage 3 on 4 ranks, memory per rank: parameters 2.00 MiB, ...; peak 9.13 MiB, at backward h.3".
std::ostream& operator<<(std::ostream& to, const Plan& plan);

}  // namespace aliquot
#pragma GCC visibility pop
