#include "apps/models/layers/rotary_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace aliquot {

double rotary_frequency(const ModelShape& shape, int64_t pair) {
  const Rope& rope = shape.rope;
  const double frequency =
      std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(shape.head_width()));
  if (rope.scaling == RopeScaling::kNone) return frequency;
  const double waves = static_cast<double>(rope.original_context) * frequency / (2 * std::numbers::pi);
  const double kept =
      std::clamp((waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / rope.factor);
}

void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines) {
  const int64_t half = shape.head_width() / 2;
  for (int64_t pair = 0; pair < half; ++pair) {
    // Rotates the vector (cosine, sine) of each position to get that of the next. In double, the error grows by about
    // 1e-16 per position.
    const double frequency = rotary_frequency(shape, pair), step_cosine = std::cos(frequency),
                 step_sine = std::sin(frequency);
    double cosine = 1, sine = 0;
    for (int64_t position = 0; position < sequence; ++position) {
      cosines[position * half + pair] = static_cast<float>(cosine);
      sines[position * half + pair] = static_cast<float>(sine);
      const double turned = cosine * step_cosine - sine * step_sine;
      sine = sine * step_cosine + cosine * step_sine;
      cosine = turned;
    }
  }
}

}  // namespace aliquot
