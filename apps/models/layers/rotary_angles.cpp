#include "apps/models/layers/rotary_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace aliquot {

namespace {

/// theta^(-2 pair / head width).
double plain_frequency(const ModelShape& shape, int64_t pair, double theta) {
  return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(shape.head_width()));
}

double llama3_frequency(const Rope& rope, double frequency) {
  const double waves = static_cast<double>(rope.original_context) * frequency / (2 * std::numbers::pi);
  const double kept =
      std::clamp((waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / rope.factor);
}

/// Dynamic scaling increases theta if the sequence is longer than the context.
double dynamic_theta(const ModelShape& shape, int64_t sequence) {
  const Rope& rope = shape.rope;
  if (sequence <= shape.context) return rope.theta;
  const double ratio = static_cast<double>(sequence) / static_cast<double>(shape.context);
  const auto width = static_cast<double>(shape.head_width());
  return rope.theta * std::pow(rope.factor * ratio - (rope.factor - 1), width / (width - 2));
}

/// Divides the frequencies of late pairs by the factor, keeps those of early pairs, and interpolates between the pairs
/// that make beta_fast and beta_slow rotations in the original context.
double yarn_frequency(const ModelShape& shape, int64_t pair, double frequency) {
  const Rope& rope = shape.rope;
  const auto width = static_cast<double>(shape.head_width());
  const auto pair_of = [&](double rotations) {
    const double context = static_cast<double>(rope.original_context);
    return width * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;  // the same width of the ramp as in transformers
  const double divided = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency * (1 - divided + divided / rope.factor);
}

}  // namespace

double rotary_frequency(const ModelShape& shape, int64_t sequence, int64_t pair) {
  const Rope& rope = shape.rope;
  const double frequency = plain_frequency(shape, pair, rope.theta);
  switch (rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: return frequency / rope.factor;
    case RopeScaling::kDynamic: return plain_frequency(shape, pair, dynamic_theta(shape, sequence));
    case RopeScaling::kYarn: return yarn_frequency(shape, pair, frequency);
    case RopeScaling::kLlama3: return llama3_frequency(rope, frequency);
  }
  return frequency;
}

void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines, int64_t first) {
  const int64_t half = shape.head_width() / 2;
  for (int64_t pair = 0; pair < half; ++pair) {
    // Rotates the vector (cosine, sine) of each position to get that of the next. In double, the error grows by about
    // 1e-16 per position.
    const double frequency = rotary_frequency(shape, sequence, pair), step_cosine = std::cos(frequency),
                 step_sine = std::sin(frequency);
    double cosine = shape.rope.attention_factor, sine = 0;
    for (int64_t position = 0; position < sequence; ++position) {
      if (position >= first) {
        cosines[(position - first) * half + pair] = static_cast<float>(cosine);
        sines[(position - first) * half + pair] = static_cast<float>(sine);
      }
      const double turned = cosine * step_cosine - sine * step_sine;
      sine = sine * step_cosine + cosine * step_sine;
      cosine = turned;
    }
  }
}

}  // namespace aliquot
