#pragma once
// Who came last to what all came to, in words.

#include <string>

#include "apps/explain/evidence.h"

namespace aliquot {

/// A line for each rank that others waited for in a part of their time that matters; nothing where there is none. Collectives end
/// for all at once, so who waited least came last: no two clocks are compared. Of several ranks that waited for it, the one that
/// waited longest is told, by its own clock; where it waited in two lanes at a time, that time counts once.
std::string late_ranks(const Evidence& evidence);

}  // namespace aliquot
