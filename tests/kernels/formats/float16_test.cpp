#include "kernels/formats/float16.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>

namespace aliquot {
namespace {

// A 16-bit format: the parameters that define it, and the functions under test.
struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  uint16_t (*from_float)(float);
  float (*to_float)(uint16_t);
};

uint16_t bf16_from(float x) { return float_to_bf16(x); }
uint16_t fp16_from(float x) { return float_to_fp16(x); }
float bf16_to(uint16_t x) { return bf16_to_float(x); }
float fp16_to(uint16_t x) { return fp16_to_float(x); }

class EveryFormat : public testing::TestWithParam<Format> {
 protected:
  uint32_t infinity() const { return ((1u << (15 - GetParam().mantissa_bits)) - 1) << GetParam().mantissa_bits; }

  // Returns the magnitude of a finite bit pattern. For the pattern of infinity, returns the value that would follow the
  // largest finite number.
  double magnitude(uint32_t pattern) const {
    const Format& format = GetParam();
    const int exponent = static_cast<int>(pattern >> format.mantissa_bits);
    const uint32_t mantissa = pattern & ((1u << format.mantissa_bits) - 1);
    const double significand = exponent == 0 ? mantissa : mantissa + (1u << format.mantissa_bits);
    return std::ldexp(significand, std::max(exponent, 1) - format.bias - format.mantissa_bits);
  }
};

TEST_P(EveryFormat, WidensEveryPatternExactly) {
  for (uint32_t pattern = 0; pattern < infinity(); ++pattern) {
    const float wide = GetParam().to_float(static_cast<uint16_t>(pattern));
    ASSERT_EQ(static_cast<double>(wide), magnitude(pattern)) << pattern;
    const float negative = GetParam().to_float(static_cast<uint16_t>(pattern | 0x8000u));
    ASSERT_EQ(float_bits(negative), float_bits(wide) | 0x80000000u) << pattern;
  }
  EXPECT_EQ(GetParam().to_float(static_cast<uint16_t>(infinity())), std::numeric_limits<float>::infinity());
}

TEST_P(EveryFormat, WideningAndRoundingBackIsTheIdentity) {
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const auto narrow = static_cast<uint16_t>(pattern);
    const uint16_t back = GetParam().from_float(GetParam().to_float(narrow));
    const bool is_nan = (pattern & 0x7fffu) > infinity();
    const uint32_t quiet = is_nan ? 1u << (GetParam().mantissa_bits - 1) : 0u;
    ASSERT_EQ(back, pattern | quiet);
  }
}

TEST_P(EveryFormat, RoundsToNearestWithTiesToEven) {
  const Format& format = GetParam();
  for (uint32_t below = 0; below < infinity(); ++below) {
    const uint32_t above = below + 1;
    const double middle = (magnitude(below) + magnitude(above)) / 2;
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    const uint32_t even = below % 2 == 0 ? below : above;
    ASSERT_EQ(format.from_float(tie), even) << below;
    ASSERT_EQ(format.from_float(-tie), even | 0x8000u) << below;
    ASSERT_EQ(format.from_float(std::nextafter(tie, 0.0f)), below);
    ASSERT_EQ(format.from_float(std::nextafter(tie, std::numeric_limits<float>::infinity())), above);
  }
}

TEST_P(EveryFormat, NanBecomesAQuietNanWithTheSameSign) {
  const uint32_t quiet_bit = 1u << (GetParam().mantissa_bits - 1);
  for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t narrow = GetParam().from_float(float_from_bits(sign | 0x7f800000u | payload));
      ASSERT_GT(narrow & 0x7fffu, infinity()) << payload;
      ASSERT_TRUE(narrow & quiet_bit) << payload;
      ASSERT_EQ(narrow >> 15, sign >> 31);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Float16, EveryFormat,
                         testing::Values(Format{"bf16", 7, 127, bf16_from, bf16_to},
                                         Format{"fp16", 10, 15, fp16_from, fp16_to}),
                         [](const auto& format) { return format.param.name; });

}  // namespace
}  // namespace aliquot
