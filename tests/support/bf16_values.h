#pragma once
// Arrays of bf16 for tests.

#include <cstdint>
#include <vector>

#include "kernels/formats/float16.h"
#include "tests/support/random_values.h"

namespace aliquot::test {

/// Half a unit in the last place of bf16, relative to the value: the maximum relative error of rounding to nearest.
inline constexpr double kHalfUlp = 0x1p-8;

inline std::vector<uint16_t> rounded(const std::vector<float>& values) {
  std::vector<uint16_t> bf16;
  for (const float value : values) bf16.push_back(float_to_bf16(value));
  return bf16;
}

inline std::vector<float> widened(const std::vector<uint16_t>& bf16) {
  std::vector<float> values;
  for (const uint16_t value : bf16) values.push_back(bf16_to_float(value));
  return values;
}

inline std::vector<uint16_t> random_bf16(RandomValues& random, int64_t count, float scale = 1.0f) {
  return rounded(random.floats(count, scale));
}

}  // namespace aliquot::test
