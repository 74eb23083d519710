// Compares the 8-bit codes with the published table.

#include "optim/update/dynamic_code.h"

#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "tests/optim/update/published_code.h"

namespace aliquot {
namespace {

template <typename Code>
void expect_published_values(bool is_signed) {
  const auto code = published_code(is_signed);
  ASSERT_EQ(code.size(), 256u);
  for (int c = 0; c < 256; ++c) {
    const double value = double{Code::value(static_cast<uint8_t>(c))}, published = code[static_cast<size_t>(c)];
    // value() computes slope * number + offset. The offset cancels up to eight ninths of the product. So a rounding
    // error of 2^-24 in the product can be nine times as large relative to the value.
    ASSERT_NEAR(value, published, std::abs(published) * 9 * 0x1p-23) << c;
    ASSERT_EQ(Code::of(static_cast<float>(published), kNearestRise), c);
    ASSERT_EQ(Code::of(static_cast<float>(value), kNearestRise), c);
  }
}

TEST(DynamicCode, HasThePublishedValues) {
  expect_published_values<SignedCode>(true);
  expect_published_values<UnsignedCode>(false);
}

/// Returns ratios of all magnitudes, and ratios about midway between two values of the code.
std::vector<float> ratios(const std::vector<double>& code, bool is_signed) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-24.0f, 0.0f), nudge(-1e-5f, 1e-5f);
  std::vector<float> all = {0.0f, 1.0f, 0x1p-149f, 0x1p-126f, 1e-30f};
  for (int i = 0; i < 200000; ++i) all.push_back(std::exp2(exponent(random)));
  for (size_t c = 1; c < code.size(); ++c) {
    const auto middle = static_cast<float>((code[c - 1] + code[c]) / 2);
    for (int i = 0; i < 20; ++i) all.push_back(std::abs(middle * (1.0f + nudge(random))));
  }
  if (is_signed) {
    const size_t positive = all.size();
    for (size_t i = 0; i < positive; ++i) all.push_back(-all[i]);
  }
  return all;
}

/// Expects that each ratio gets the code of the nearest value. If a ratio is near the midpoint of two values, either
/// code is accepted. The reason is that the position of a ratio between two values is exact only to about 2^-15 of
/// their distance.
template <typename Code>
void expect_nearest(bool is_signed) {
  const auto code = published_code(is_signed);
  for (const float ratio : ratios(code, is_signed)) {
    double tie = 0.0;
    int nearest = nearest_code(code, double{ratio}, &tie);
    if (!is_signed && ratio > 0.0f) nearest = std::max(nearest, 1);
    const int actual = Code::of(ratio, kNearestRise);
    ASSERT_LE(std::abs(actual - nearest), tie < 0x1p-13 ? 1 : 0) << ratio << " tie " << tie;
  }
}

TEST(DynamicCode, RoundsToTheNearestValue) {
  expect_nearest<SignedCode>(true);
  expect_nearest<UnsignedCode>(false);
}

/// Encodes each ratio with evenly spaced values of `rise`. The mean of the decoded values must be the ratio. The
/// tolerance allows for the error of a ratio's position between two values (2^-14 of their distance). It also allows
/// for the spacing of the values of `rise`.
template <typename Code>
void expect_unbiased(bool is_signed) {
  const auto code = published_code(is_signed);
  std::mt19937 random(4);
  std::uniform_real_distribution<float> exponent(-20.0f, 0.0f);
  for (int trial = 0; trial < 300; ++trial) {
    const float ratio = (is_signed && trial % 2 == 1 ? -0.99f : 1.0f) * std::exp2(exponent(random));
    double sum = 0.0;
    for (int rise = 0; rise < 0x10000; rise += 16) {
      sum += code[Code::of(ratio, rise_of(static_cast<uint32_t>(rise), 0))];
    }
    const auto above = std::ranges::upper_bound(code, double{ratio}) - code.begin();
    const double gap =
        code[static_cast<size_t>(std::min<std::ptrdiff_t>(above, 255))] - code[static_cast<size_t>(above - 1)];
    ASSERT_NEAR(sum / 4096, double{ratio}, gap * (1.0 / 4096 + 0x1p-13)) << ratio;
  }
}

TEST(DynamicCode, StochasticRoundingIsUnbiased) {
  expect_unbiased<SignedCode>(true);
  expect_unbiased<UnsignedCode>(false);
}

TEST(DynamicCode, ValuesOfTheCodeRoundToThemselves) {
  // The words 0 and 0xffff are left out. With them, the rounding error of a position could change the code.
  for (const uint32_t word : {0x0800u, 0x8000u, 0xf000u}) {
    for (int c = 0; c < 256; ++c) {
      const auto code = static_cast<uint8_t>(c);
      ASSERT_EQ(SignedCode::of(SignedCode::value(code), rise_of(word, 0)), code);
      ASSERT_EQ(UnsignedCode::of(UnsignedCode::value(code), rise_of(word, 0)), code);
    }
  }
}

TEST(DynamicCode, RatiosAtAndBeyondTheEndsGiveTheEndCodes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float most = rise_of(0xffffu, 0);
  for (const float beyond : {1.0f, 1.0000001f, kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const float rise : {0.0f, kNearestRise, most}) {
      EXPECT_GE(SignedCode::of(beyond, rise), 254);
      EXPECT_GE(UnsignedCode::of(beyond, rise), 254);
      EXPECT_LE(SignedCode::of(-beyond, rise), beyond == beyond ? 0 : 255);
    }
  }
  EXPECT_EQ(SignedCode::of(0.0f, most), 127);
  EXPECT_EQ(SignedCode::of(-0.0f, kNearestRise), 127);
  EXPECT_EQ(UnsignedCode::of(0.0f, most), 0);
  EXPECT_EQ(UnsignedCode::of(0x1p-149f, 0.0f), 1);  // a positive ratio never becomes 0
}

TEST(DynamicCode, ScaleOfATinyBlockIsZeroAndOfNanIsNan) {
  EXPECT_EQ(scale_of(magnitude_bits(-3.0f)), 3.0f);
  EXPECT_EQ(scale_of(magnitude_bits(0x1p-127f)), 0.0f);
  EXPECT_EQ(inverse_of(0.0f), 0.0f);
  EXPECT_EQ(inverse_of(0x1p-126f), 0x1p126f);
  EXPECT_TRUE(std::isnan(scale_of(magnitude_bits(-std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace aliquot
