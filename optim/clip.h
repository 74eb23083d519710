#pragma once
// Clipping by the global norm, and the factor by which updates multiply gradients.

#include <cmath>
#include <limits>

namespace aliquot {

/// Returns the norm before clipping. `sum_of_squares` is over all elements of the reduced gradients, which are still
/// multiplied by the loss scale. The norm is not finite if a gradient is not finite.
inline double gradient_norm(double sum_of_squares, double loss_scale = 1.0) {
  return std::sqrt(sum_of_squares) / loss_scale;
}

/// Returns min(1, limit / (norm + 1e-6)). If `limit` is 0, clipping is disabled and the result is 1. If the norm is not
/// finite, the result is NaN.
inline double clip_factor(double norm, double limit) {
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  if (limit <= 0.0) return 1.0;
  return std::fmin(1.0, limit / (norm + 1e-6));
}

/// Returns the factor by which the update multiplies each gradient, rounded once from double. If the norm is not
/// finite, the factor is NaN, and the update is skipped.
inline float gradient_factor(double clip_factor, double loss_scale = 1.0) {
  return static_cast<float>(clip_factor / loss_scale);
}

}  // namespace aliquot
