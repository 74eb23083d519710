#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numbers>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::array<std::string_view, 5> kShapes{"constant", "linear", "cosine", "wsd", "inverse-sqrt"};
constexpr std::array<std::string_view, 3> kScalings{"none", "linear", "sqrt"};
constexpr std::array<std::string_view, 2> kWarmups{"linear", "log"};

template <size_t N>
size_t find(const std::array<std::string_view, N>& names, std::string_view name, std::string_view what) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw UsageError(fmt::format("{} '{}' is unknown; it must be one of {}", what, name, fmt::join(names, ", ")));
  }
  return static_cast<size_t>(found - names.begin());
}

double line(double from, double to, int64_t done, int64_t of) {
  if (done >= of) return to;  // exactly, not but for a rounding
  return from + (to - from) * (static_cast<double>(done) / static_cast<double>(of));
}

/// Steps in which wsd falls.
int64_t fall_steps(const RateSchedule& schedule) {
  const auto wanted = std::llround(schedule.wsd_fraction * static_cast<double>(schedule.steps));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, schedule.steps - schedule.warmup_steps));
}

double cosine(const RateSchedule& schedule, int64_t done, int64_t of) {
  if (done >= of) return schedule.min_lr;
  const double p = static_cast<double>(done) / static_cast<double>(of);
  return schedule.min_lr + (schedule.lr - schedule.min_lr) * (1.0 + std::cos(std::numbers::pi * p)) / 2.0;
}

/// Before step N = warmup_steps, so N is 2 at least.
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
    case RateShape::kLinear: return line(lr, min_lr, done, of);
    case RateShape::kCosine: return cosine(*this, done, of);
    case RateShape::kWsd: {
      const int64_t fall = fall_steps(*this);
      return line(lr, min_lr, std::max<int64_t>(0, step - (steps - fall)), fall);
    }
    case RateShape::kInverseSqrt: {
      const double start = static_cast<double>(std::max<int64_t>(warmup_steps, 1));
      return std::max(min_lr, lr * std::sqrt(start / static_cast<double>(step)));
    }
  }
  return lr;
}

double scaled_rate(double lr, RateScaling scaling, int64_t batch, int64_t base_batch) {
  if (scaling == RateScaling::kNone) return lr;
  if (batch <= 0 || base_batch <= 0) {
    throw UsageError(
        fmt::format("the rate cannot be scaled from a base batch of {} to a batch of {}", base_batch, batch));
  }
  const double ratio = static_cast<double>(batch) / static_cast<double>(base_batch);
  return lr * (scaling == RateScaling::kLinear ? ratio : std::sqrt(ratio));
}

RateShape rate_shape(std::string_view name) { return static_cast<RateShape>(find(kShapes, name, "schedule")); }
RateScaling rate_scaling(std::string_view name) { return static_cast<RateScaling>(find(kScalings, name, "scale-lr")); }
WarmupShape warmup_shape(std::string_view name) {
  return static_cast<WarmupShape>(find(kWarmups, name, "warmup-shape"));
}
std::string_view name(WarmupShape shape) { return kWarmups[static_cast<size_t>(shape)]; }
std::string_view name(RateShape shape) { return kShapes[static_cast<size_t>(shape)]; }
std::string_view name(RateScaling scaling) { return kScalings[static_cast<size_t>(scaling)]; }

}  // namespace aliquot
