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

/// Throws UsageError if the number of CostModel::uses differs from the number of uses of the model.
void check_uses(const ModelSpec& model, const CostModel& cost);

/// Returns the time of the model's code in a use, for an operation with this verb. `cost` must pass check_uses().
double model_seconds(const ModelSpec& model, const CostModel& cost, int32_t use, Verb verb);

/// Returns the prices, indexed by operation. Throws what check_uses() throws.
std::vector<Price> prices(const Plan& plan, const CostModel& cost);

/// Returns the total time of the repeated sums (RepeatedSums) in a step with a replay. Assumes that none of them
/// overlaps with other work.
double repetition_seconds(const Plan& plan, const CostModel& cost);

}  // namespace aliquot
