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
  /// A loss more than `deviations` standard deviations above the mean is a spike, once there are kLeast to compare with.
  explicit SpikeGuard(double deviations) : deviations_(deviations) {}

  struct Seen {
    double mean = 0, variance = 0;
    int64_t count = 0;
  };

  /// How many deviations the loss lies above the mean; 0 while too few were seen, and for what is not finite.
  double height(double loss) const {
    if (seen_.count < kLeast || !std::isfinite(loss) || loss <= seen_.mean) return 0;
    return (loss - seen_.mean) / std::max(std::sqrt(seen_.variance), kLeastDeviation * std::abs(seen_.mean));
  }
  bool is_spike(double loss) const { return height(loss) > deviations_; }

  void take(double loss) {
    if (!std::isfinite(loss)) return;
    ++seen_.count;
    const double weight = 1.0 / static_cast<double>(std::min(seen_.count, kWindow));
    const double difference = loss - seen_.mean;
    seen_.mean += weight * difference;
    seen_.variance = (1 - weight) * (seen_.variance + weight * difference * difference);
  }

  const Seen& seen() const { return seen_; }
  void go_on_from(const Seen& seen) { seen_ = seen; }

  static constexpr int64_t kLeast = 10, kWindow = 50;

 private:
  static constexpr double kLeastDeviation = 1e-3;  // of the mean: losses that hardly differ are no measure

  double deviations_;
  Seen seen_;
};

}  // namespace aliquot
