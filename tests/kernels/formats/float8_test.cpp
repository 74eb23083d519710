#include "kernels/formats/float8.h"

#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

namespace aliquot {
namespace {

class EveryFp8Format : public testing::TestWithParam<Fp8Format> {
 protected:
  static Fp8Format format() { return GetParam(); }
  static bool is_e4m3() { return format() == Fp8Format::kE4M3; }
  static int mantissa_bits() { return is_e4m3() ? 3 : 2; }
  static int bias() { return is_e4m3() ? 7 : 15; }
  static double largest() { return is_e4m3() ? 448 : 57344; }

  /// The value of a code by its definition. Codes above that of the largest value are not finite.
  static double value_of(int code) {
    const int exponent = code >> mantissa_bits(), mantissa = code & ((1 << mantissa_bits()) - 1);
    const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits());
    return std::ldexp(significand, std::max(exponent, 1) - bias() - mantissa_bits());
  }
  static int largest_code() { return is_e4m3() ? 0x7e : 0x7b; }

  /// The code of the nearest value, found by comparing all values. Of two equally near values, the one whose last bit
  /// is 0.
  static int nearest(double magnitude) {
    if (magnitude >= largest()) return largest_code();
    int best = 0;
    for (int code = 1; code <= largest_code(); ++code) {
      const double error = std::abs(value_of(code) - magnitude), least = std::abs(value_of(best) - magnitude);
      if (error < least || (error == least && code % 2 == 0)) best = code;
    }
    return best;
  }
  static testing::AssertionResult rounds(float value) {
    const int sign = std::signbit(value) ? 0x80 : 0;
    const int expected = std::isfinite(value) ? sign | nearest(std::abs(static_cast<double>(value))) : kFp8Nan;
    const int got = float_to_fp8(value, format());
    if (got == expected) return testing::AssertionSuccess();
    return testing::AssertionFailure() << value << " becomes code " << got << ", expected " << expected;
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, EveryFp8Format, testing::Values(Fp8Format::kE4M3, Fp8Format::kE5M2),
                         [](const auto& tested) {
                           return std::string(tested.param == Fp8Format::kE4M3 ? "E4M3" : "E5M2");
                         });

TEST_P(EveryFp8Format, WidensEveryCodeExactly) {
  EXPECT_EQ(value_of(largest_code()), largest());
  for (int code = 0; code < 0x80; ++code) {
    const float positive = fp8_to_float(static_cast<uint8_t>(code), format());
    const float negative = fp8_to_float(static_cast<uint8_t>(code | 0x80), format());
    EXPECT_EQ(float_bits(negative), float_bits(positive) | 0x80000000u) << code;
    if (code <= largest_code()) {
      EXPECT_EQ(static_cast<double>(positive), value_of(code)) << code;
    } else if (!is_e4m3() && code == 0x7c) {
      EXPECT_EQ(positive, std::numeric_limits<float>::infinity());
    } else {
      EXPECT_TRUE(std::isnan(positive)) << code;
    }
  }
}

TEST_P(EveryFp8Format, RoundsEveryBf16ValueToTheNearest) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    ASSERT_TRUE(rounds(bf16_to_float(static_cast<uint16_t>(bits)))) << bits;
  }
}

/// The fp32 values at, next to and between all neighboring codes.
TEST_P(EveryFp8Format, RoundsTiesToEven) {
  for (int code = 0; code <= largest_code(); ++code) {
    const double here = value_of(code), next = code == largest_code() ? 1.1 * here : value_of(code + 1);
    const auto middle = static_cast<float>((here + next) / 2);
    for (const float near : {static_cast<float>(here), middle}) {
      for (const float value : {near, std::nextafter(near, 0.0f), std::nextafter(near, 1e9f)}) {
        ASSERT_TRUE(rounds(value)) << code;
        ASSERT_TRUE(rounds(-value)) << code;
      }
    }
  }
}

TEST_P(EveryFp8Format, KeepsNanAndInfinityVisible) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::nanf(""), -std::nanf("")}) {
    EXPECT_EQ(float_to_fp8(value, format()), kFp8Nan);
    EXPECT_TRUE(std::isnan(fp8_to_float(float_to_fp8(value, format()), format())));
  }
  EXPECT_EQ(fp8_to_float(float_to_fp8(3e38f, format()), format()), largest());
  EXPECT_EQ(fp8_to_float(float_to_fp8(-3e38f, format()), format()), -largest());
}

TEST_P(EveryFp8Format, ScalesByTheLargestPowerOfTwoThatFits) {
  for (uint32_t bits = 1; bits < 0x7f80u; ++bits) {
    const float magnitude = bf16_to_float(static_cast<uint16_t>(bits));
    const float scale = fp8_scale(magnitude, format());
    int exponent = 0;
    ASSERT_EQ(std::frexp(scale, &exponent), 0.5f);
    ASSERT_EQ(scale * (1.0f / scale), 1.0f);
    ASSERT_LE(static_cast<double>(magnitude) * scale, largest()) << bits;
    if (scale < 0x1p126f) {
      ASSERT_GT(2.0 * magnitude * scale, largest()) << bits;
    }
  }
  for (const float none : {0.0f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_EQ(fp8_scale(none, format()), 1.0f);
}

}  // namespace
}  // namespace aliquot
