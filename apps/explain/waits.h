#pragma once
// Who waited for whom.

#include <vector>

#include "apps/explain/evidence.h"

namespace aliquot {

/// A collective that ranks came to and never ended, and for whom they waited there; late are those who came when the others had
/// given up. Ranks are in the order of the group.
struct UnendedCrossing {
  const Crossing* crossing = nullptr;
  std::vector<int> waiting, missing, late;
};

/// The first of each lane of each group: what lies behind it was never meant to be reached by those who gave up there. The earliest
/// issued stands first. Without times, ranks waited in what they had issued where another, by what it issued after, had not;
/// a rank that left no record is missing where another came to its end. Of meetings those that ranks ended over stand first,
/// and the others are left out, unless all were told to end.
std::vector<UnendedCrossing> waits_of(const Evidence& evidence);

}  // namespace aliquot
