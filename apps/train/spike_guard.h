#pragma once
// When a loss is too far above those before it to be learned from.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace aliquot {

/// Mean and variance of the losses that were taken, the latest fifty or so counting most. The same on all ranks, which give it
/// the same losses.
class SpikeGuard {
 public:
  /// A loss more than `deviations` standard deviations above the mean is a spike, once there are kMinSamples to compare with.
  explicit SpikeGuard(double deviations) : deviations_(deviations) {}

  struct Statistics {
    double mean = 0, variance = 0;
    int64_t count = 0;
  };

  /// How many deviations the loss lies above the mean; 0 while too few were seen, and for what is not finite.
  double deviations_above_mean(double loss) const {
    if (statistics_.count < kMinSamples || !std::isfinite(loss) || loss <= statistics_.mean) return 0;
    return (loss - statistics_.mean) /
           std::max(std::sqrt(statistics_.variance), kMinRelativeDeviation * std::abs(statistics_.mean));
  }
  bool is_spike(double loss) const { return deviations_above_mean(loss) > deviations_; }

  void take(double loss) {
    if (!std::isfinite(loss)) return;
    ++statistics_.count;
    const double weight = 1.0 / static_cast<double>(std::min(statistics_.count, kWindow));
    const double difference = loss - statistics_.mean;
    statistics_.mean += weight * difference;
    statistics_.variance = (1 - weight) * (statistics_.variance + weight * difference * difference);
  }

  const Statistics& statistics() const { return statistics_; }
  void restore(const Statistics& seen) { statistics_ = seen; }

  static constexpr int64_t kMinSamples = 10, kWindow = 50;

 private:
  static constexpr double kMinRelativeDeviation = 1e-3;  // of the mean: losses that hardly differ are no measure

  double deviations_;
  Statistics statistics_;
};

}  // namespace aliquot
