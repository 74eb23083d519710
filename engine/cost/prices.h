#pragma once
// The predicted time and traffic of each operation, from the rates of a machine.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// The price of one operation.
struct Price {
  double seconds = 0;  // duration without contention
  /// Bytes that a rank sends and also receives. A send or receive has bytes in one direction only.
  int64_t bytes = 0;
  int64_t crossing_bytes = 0;          // bytes that a node sends to other nodes
  double link_seconds = 0;             // part of `seconds` during which the link of the node is busy
  double seconds_while_computing = 0;  // duration while the rank computes; 0: equal to `seconds`
  double core_share = 0;               // fraction by which the operation slows down compute
};

/// Returns the prices, indexed by operation. Throws UsageError if the number of CostModel::uses differs from the number
/// of uses of the model.
std::vector<Price> prices(const Plan& plan, const CostModel& cost);

}  // namespace aliquot
