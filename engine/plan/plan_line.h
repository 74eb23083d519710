#pragma once
// A plan's memory in one line of text.

#include <iosfwd>
#include <string>

#include "engine/plan/schedule.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Prints the peak of each category, the peak of their sum, and the options that were chosen to meet a budget: "ZeRO
/// stage 3 on 4 ranks, memory per rank: parameters 2.00 MiB, ...; peak 9.13 MiB, at backward h.3". Ends with
/// unit_hint().
std::ostream& operator<<(std::ostream& to, const Plan& plan);

/// Returns advice if a lower ZeRO stage would need less memory, because one unit has most of the parameters and a rank
/// holds all of them while it uses the unit. Otherwise returns "".
std::string unit_hint(const Plan& plan);

}  // namespace aliquot
#pragma GCC visibility pop
