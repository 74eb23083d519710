#pragma once
// Clipping by the global norm, and the one factor a gradient is multiplied by.

#include <cmath>
#include <limits>

namespace aliquot {

/// The norm before clipping, from the sum of squares of the gradients as they were reduced, still multiplied by the
/// loss scale. Not finite when a gradient is not.
inline double gradient_norm(double sum_of_squares, double loss_scale = 1.0) {
  return std::sqrt(sum_of_squares) / loss_scale;
}

/// min(1, limit / (norm + 1e-6)); 1 when the limit is 0, which is no clipping; NaN when the norm is not finite.
inline double clip_factor(double norm, double limit) {
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  if (limit <= 0.0) return 1.0;
  return std::fmin(1.0, limit / (norm + 1e-6));
}

/// What the update multiplies each gradient by, once: computed in double, rounded once. NaN, which skips the step, when
/// the norm was not finite.
inline float gradient_factor(double clip_factor, double loss_scale = 1.0) {
  return static_cast<float>(clip_factor / loss_scale);
}

}  // namespace aliquot
