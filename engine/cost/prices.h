#pragma once
// What each operation of a schedule takes, from rates.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// What one operation takes, and moves.
struct Price {
  double seconds = 0;                  // where nothing slows it down
  int64_t bytes = 0;                   // sent, and received
  int64_t crossing_bytes = 0;          // sent by a node to others
  double link_seconds = 0;             // of `seconds`, so long the node's link is busy
  double seconds_while_computing = 0;  // what it takes while the rank computes; 0: the same
  double core_share = 0;               // of the rank's computing that it stops meanwhile
};

/// By operation. Throws UsageError when the uses priced are not the plan's.
std::vector<Price> prices(const Plan& plan, const CostModel& cost);

}  // namespace aliquot
