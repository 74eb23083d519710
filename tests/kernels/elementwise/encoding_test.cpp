#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/elementwise/encoding_host.h"
#include "kernels/formats/float16.h"
#include "tests/support/random_values.h"

namespace aliquot {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<float> values(int64_t count, uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(count));
  test::RandomValues random(seed);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(random.normal()) * std::exp2(static_cast<float>(i / 256 % 40) - 20);
  return x;
}

/// Returns the value of element i of `block` after quantization, computed from the definition in kernels.h.
float reference_encoding(const std::vector<float>& block, std::size_t i) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::abs(x));
  return std::nearbyint(block[i] * (127.0f / largest)) * (largest / 127.0f);
}

Bytes encoded(const std::vector<float>& x, int64_t part_count, Bytes* residual = nullptr) {
  const auto count = static_cast<int64_t>(x.size()) / part_count;
  Bytes to(static_cast<std::size_t>(part_count * encoded_bytes(count)));
  if (residual != nullptr) residual->resize(to.size());
  encode_blocks(
      {x.data(), DType::kFloat32, to.data(), residual == nullptr ? nullptr : residual->data(), part_count, count}, 0,
      static_cast<int64_t>(x.size()));
  return to;
}

std::vector<float> decoded(const Bytes& from, int64_t part_count, int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(part_count * count));
  decode_blocks({from.data(), x.data(), DType::kFloat32, part_count, count}, 0, part_count * count);
  return x;
}

TEST(Encoding, SizeIsOneBytePerElementAndOneScalePerBlock) {
  EXPECT_EQ(encoded_bytes(0), 0);
  EXPECT_EQ(encoded_bytes(256), 320);
  EXPECT_EQ(encoded_bytes(256 * 16), 256 * 16 + 64);
  EXPECT_EQ(encoded_bytes(1 << 20), (1 << 20) + (1 << 14));
}

TEST(Encoding, RoundsToTheNearestMultipleOfTheScale) {
  constexpr int64_t kCount = 40 * 256;
  const auto x = values(kCount, 1);
  const auto back = decoded(encoded(x, 1), 1, kCount);
  for (std::size_t b = 0; b < 40; ++b) {
    const std::vector block(x.begin() + b * 256, x.begin() + (b + 1) * 256);
    for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ(back[b * 256 + i], reference_encoding(block, i)) << b << " " << i;
  }
}

/// The values of a block do not depend on the number of parts, nor on the ranges in which they are encoded.
TEST(Encoding, BlocksAreIndependentOfPartsAndRanges) {
  constexpr int64_t kCount = 24 * 256;
  const auto x = values(kCount, 2);
  const auto whole = decoded(encoded(x, 1), 1, kCount);
  for (const int64_t parts : {2, 3, 8, 24})
    EXPECT_EQ(decoded(encoded(x, parts), parts, kCount / parts), whole) << parts;
  Bytes in_two(static_cast<std::size_t>(encoded_bytes(kCount)));
  const Encode encode{x.data(), DType::kFloat32, in_two.data(), nullptr, 1, kCount};
  encode_blocks(encode, 11 * 256, kCount);
  encode_blocks(encode, 0, 11 * 256);
  EXPECT_EQ(decoded(in_two, 1, kCount), whole);
}

TEST(Encoding, EncodingDecodedValuesAgainKeepsThem) {
  const auto once = decoded(encoded(values(16 * 256, 3), 1), 1, 16 * 256);
  const auto twice = decoded(encoded(once, 1), 1, 16 * 256);
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], once[i], 4e-7f * std::abs(once[i])) << i;
}

TEST(Encoding, EncodesAndDecodesSixteenBitTypes) {
  constexpr int64_t kCount = 4 * 256;
  const auto x = values(kCount, 4);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const bool bf16 = dtype == DType::kBFloat16;
    std::vector<uint16_t> half_values(kCount), back(kCount);
    std::vector<float> float_values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      half_values[i] = bf16 ? float_to_bf16(x[i]) : float_to_fp16(x[i]);
      float_values[i] = bf16 ? bf16_to_float(half_values[i]) : fp16_to_float(half_values[i]);
    }
    Bytes to(static_cast<std::size_t>(encoded_bytes(kCount)));
    encode_blocks({half_values.data(), dtype, to.data(), nullptr, 1, kCount}, 0, kCount);
    EXPECT_EQ(to, encoded(float_values, 1)) << name(dtype);
    const auto expected = decoded(to, 1, kCount);
    decode_blocks({to.data(), back.data(), dtype, 1, kCount}, 0, kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(back[i], bf16 ? float_to_bf16(expected[i]) : float_to_fp16(expected[i])) << i;
  }
}

/// The error-feedback residual carries each rounding error into the next step. So the sum of all sent values stays
/// within one rounding error of the true sum. Without it the errors add up.
TEST(Encoding, ErrorFeedbackKeepsTheSumOverStepsExactToOneRounding) {
  constexpr int64_t kCount = 8 * 256;
  constexpr int kSteps = 400;
  Bytes residual(static_cast<std::size_t>(encoded_bytes(kCount)));
  std::vector<double> exact_sum(kCount), sum_with_feedback(kCount), sum_without_feedback(kCount);
  const auto constant = values(kCount, 5);  // the same rounding error at each step, which is the worst case
  for (int step = 0; step < kSteps; ++step) {
    const auto decoded_with_feedback = decoded(encoded(constant, 1, &residual), 1, kCount);
    const auto decoded_without_feedback = decoded(encoded(constant, 1), 1, kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      exact_sum[i] += constant[i], sum_with_feedback[i] += decoded_with_feedback[i],
          sum_without_feedback[i] += decoded_without_feedback[i];
  }
  double worst_with_feedback = 0, worst_without_feedback = 0;
  for (std::size_t b = 0; b < kCount / 256; ++b) {
    double largest = 0;
    for (std::size_t i = b * 256; i < (b + 1) * 256; ++i) largest = std::max<double>(largest, std::abs(constant[i]));
    for (std::size_t i = b * 256; i < (b + 1) * 256; ++i) {
      worst_with_feedback = std::max(worst_with_feedback, std::abs(sum_with_feedback[i] - exact_sum[i]) / largest);
      worst_without_feedback =
          std::max(worst_without_feedback, std::abs(sum_without_feedback[i] - exact_sum[i]) / largest);
    }
  }
  EXPECT_LT(worst_with_feedback, 2.5 / 127);  // one rounding error, plus those of the residual, which is quantized too
  EXPECT_GT(worst_without_feedback, 100 * 0.5 / 127);
}

TEST(Encoding, ANonfiniteElementMakesItsBlockNanAndItsResidualZero) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    auto x = values(3 * 256, 6);
    const auto clean = decoded(encoded(x, 1), 1, 3 * 256);
    x[300] = bad;
    Bytes residual;
    const auto back = decoded(encoded(x, 1, &residual), 1, 3 * 256);
    for (std::size_t i = 0; i < back.size(); ++i) {
      if (i / 256 == 1) {
        ASSERT_TRUE(std::isnan(back[i])) << i;
      } else {
        ASSERT_EQ(back[i], clean[i]) << i;
      }
    }
    const auto decoded_residual = decoded(residual, 1, 3 * 256);
    for (std::size_t i = 256; i < 512; ++i) ASSERT_EQ(decoded_residual[i], 0.0f);
    EXPECT_NE(decoded_residual[3], 0.0f);
  }
}

TEST(Encoding, ZerosAndTinyBlocksDecodeToZero) {
  std::vector<float> x(512, 0.0f);
  x[300] = 1e-38f;
  x[301] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(decoded(encoded(x, 1), 1, 512), std::vector<float>(512, 0.0f));
  x[300] = 1e-29f;
  EXPECT_NEAR(decoded(encoded(x, 1), 1, 512)[300], 1e-29f, 1e-35f);
}

/// Encoding on a stream, with the threads of a pool, gives the same bytes as encoding on the calling thread.
TEST(Encoding, AStreamGivesTheSameBytes) {
  constexpr int64_t kParts = 3, kCount = 200 * 256;
  const auto x = values(kParts * kCount, 7);
  Bytes residual, stream_residual(static_cast<std::size_t>(kParts * encoded_bytes(kCount))), to(stream_residual.size());
  const Bytes expected = encoded(x, kParts, &residual);
  const auto device = make_host_device(3);
  const auto stream = device->make_stream(Lane::kCompute);
  std::vector<float> back(x.size());
  device->kernels().encode(*stream, {x.data(), DType::kFloat32, to.data(), stream_residual.data(), kParts, kCount});
  device->kernels().decode(*stream, {to.data(), back.data(), DType::kFloat32, kParts, kCount});
  stream->synchronize();
  EXPECT_EQ(to, expected);
  EXPECT_EQ(stream_residual, residual);
  EXPECT_EQ(back, decoded(expected, kParts, kCount));
}

}  // namespace
}  // namespace aliquot
