#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numbers>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

double interpolate(double from, double to, int64_t done, int64_t of) {
  if (done >= of) return to;  // the exact value, without rounding
  return from + (to - from) * (static_cast<double>(done) / static_cast<double>(of));
}

/// Returns the number of steps in which the rate of kWsd decays.
int64_t decay_steps(const RateSchedule& schedule) {
  const auto rounded = std::llround(schedule.wsd_fraction * static_cast<double>(schedule.steps));
  return std::clamp<int64_t>(rounded, 1, std::max<int64_t>(1, schedule.steps - schedule.warmup_steps));
}

double cosine(const RateSchedule& schedule, int64_t done, int64_t of) {
  if (done >= of) return schedule.min_lr;
  const double p = static_cast<double>(done) / static_cast<double>(of);
  return schedule.min_lr + (schedule.lr - schedule.min_lr) * (1.0 + std::cos(std::numbers::pi * p)) / 2.0;
}

/// Returns the rate of a warm-up step, which is before step N = warmup_steps. Steps begin at 1, so N is at least 2
/// here.
double warmup(const RateSchedule& schedule, int64_t step) {
  const auto t = static_cast<double>(step), n = static_cast<double>(schedule.warmup_steps);
  const double height = schedule.lr - schedule.warmup_from;
  if (schedule.warmup_shape == WarmupShape::kLog) return schedule.warmup_from + height * (std::log(t) / std::log(n));
  return schedule.warmup_from + height * t / n;
}

}  // namespace

double RateSchedule::rate(int64_t step) const {
  if (step < warmup_steps) return warmup(*this, step);
  if (step == warmup_steps) return lr;
  step = std::min(step, std::max(steps, warmup_steps));
  const int64_t done = step - warmup_steps, of = steps - warmup_steps;
  switch (shape) {
    case RateShape::kConstant: return lr;
    case RateShape::kLinear: return interpolate(lr, min_lr, done, of);
    case RateShape::kCosine: return cosine(*this, done, of);
    case RateShape::kWsd: {
      const int64_t decay = decay_steps(*this);
      return interpolate(lr, min_lr, std::max<int64_t>(0, step - (steps - decay)), decay);
    }
    case RateShape::kInverseSqrt: {
      const double start = static_cast<double>(std::max<int64_t>(warmup_steps, 1));
      return std::max(min_lr, lr * std::sqrt(start / static_cast<double>(step)));
    }
  }
  return lr;
}

double scaled_learning_rate(double lr, RateScaling scaling, int64_t batch, int64_t base_batch) {
  if (scaling == RateScaling::kNone) return lr;
  if (batch <= 0 || base_batch <= 0) {
    throw UsageError(fmt::format("cannot scale the learning rate from batch size {} to {}: both must be positive",
                                 base_batch, batch));
  }
  const double ratio = static_cast<double>(batch) / static_cast<double>(base_batch);
  return lr * (scaling == RateScaling::kLinear ? ratio : std::sqrt(ratio));
}

}  // namespace aliquot
