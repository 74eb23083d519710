#pragma once
// Divides the sequences of a run among several parts of the data, by weights.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace aliquot {

/// Assigns each position of a run to a part of the data. For every n, a part with weight w has nearly w * n of the
/// first n positions: the difference is less than one. The assignment depends only on the weights. It can be computed
/// for one position without the others. Weights are rounded to thousandths of their sum.
class Mixture {
 public:
  static constexpr int64_t kPeriod = 1000;

  /// Weights are positive. Throws UsageError if a weight is less than a thousandth of their sum.
  explicit Mixture(std::span<const double> weights);

  struct Place {
    size_t part;
    int64_t index;  // number of earlier positions of this part
  };
  Place at(int64_t position) const;

 private:
  std::vector<int64_t> quotas_;  // positions of each part in a period
  std::vector<Place> period_;    // of the positions of the first period; empty if there is only one part
};

}  // namespace aliquot
