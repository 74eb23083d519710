#pragma once
// Detects a loss that is far above the losses of earlier steps.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace aliquot {

/// The mean and variance of the losses added so far, exponentially weighted over about kWindow losses. All ranks add
/// the same losses, so all ranks detect the same spikes.
class SpikeGuard {
 public:
  /// A loss is a spike if it is more than `deviations` standard deviations above the mean and at least kMinSamples
  /// losses have been added.
  explicit SpikeGuard(double deviations) : deviations_(deviations) {}

  struct Statistics {
    double mean = 0, variance = 0;
    int64_t count = 0;
  };

  /// Returns by how many standard deviations the loss exceeds the mean. Returns 0 if the loss is not above the mean or
  /// not finite, or if fewer than kMinSamples losses have been added.
  double deviations_above_mean(double loss) const {
    if (statistics_.count < kMinSamples || !std::isfinite(loss) || loss <= statistics_.mean) return 0;
    return (loss - statistics_.mean) /
           std::max(std::sqrt(statistics_.variance), kMinRelativeDeviation * std::abs(statistics_.mean));
  }
  bool is_spike(double loss) const { return deviations_above_mean(loss) > deviations_; }

  /// Adds the loss to the statistics. Ignores a loss that is not finite.
  void add(double loss) {
    if (!std::isfinite(loss)) return;
    ++statistics_.count;
    const double weight = 1.0 / static_cast<double>(std::min(statistics_.count, kWindow));
    const double difference = loss - statistics_.mean;
    statistics_.mean += weight * difference;
    statistics_.variance = (1 - weight) * (statistics_.variance + weight * difference * difference);
  }

  const Statistics& statistics() const { return statistics_; }
  void restore(const Statistics& saved) { statistics_ = saved; }

  static constexpr int64_t kMinSamples = 10, kWindow = 50;

 private:
  // A lower bound on the standard deviation, relative to the mean. Without it, any small rise after nearly equal losses
  // would be a spike.
  static constexpr double kMinRelativeDeviation = 1e-3;

  double deviations_;
  Statistics statistics_;
};

}  // namespace aliquot
