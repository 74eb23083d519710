#include "kernels/layers/row_loops.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/all_close.h"
#include "tests/support/bf16_values.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

constexpr int64_t kRows = 9;

// Runs every loop of one implementation on fixed inputs and returns all results in one array.
std::vector<float> everything(const RowLoops& loops, int64_t width) {
  RandomValues random(static_cast<uint64_t>(width));
  const int64_t count = kRows * width;
  const auto x = random.floats(count, 3), w = random.floats(width), b = random.floats(width),
             from = random.floats(count);
  const auto size = static_cast<size_t>(count);
  std::vector<float> all, y(size), mean(kRows), rstd(kRows), dw(static_cast<size_t>(width)), db(dw), dx = from, z = x,
                                                                                                     s = x;
  const auto keep = [&all](const std::vector<float>& values) { all.insert(all.end(), values.begin(), values.end()); };
  loops.layer_norm({x.data(), w.data(), b.data(), mean.data(), rstd.data(), y.data(), kRows, width});
  loops.layer_norm_backward({x.data(), w.data(), mean.data(), rstd.data(), from.data(), dx.data(), kRows, width, true});
  loops.layer_norm_weights(
      {x.data(), mean.data(), rstd.data(), from.data(), dw.data(), db.data(), kRows, width, 0, width, false});
  for (const auto* values : {&y, &mean, &rstd, &dx, &dw, &db}) keep(*values);
  loops.sum_columns({db.data(), x.data(), kRows, width, 0, width, true});
  loops.add_bias({z.data(), z.data(), b.data(), kRows, width});
  loops.gelu(y.data(), z.data(), count);
  loops.gelu_backward(dx.data(), x.data(), count);
  for (const auto* values : {&y, &z, &dx, &db}) keep(*values);
  loops.softmax({s.data(), width, kRows, width, 2}, mean.data());
  loops.softmax_backward({s.data(), width, kRows, width, 2}, dx.data(), rstd.data());
  std::vector<float> maxima(kRows, -std::numeric_limits<float>::infinity()), sums(kRows);
  std::vector<int32_t> targets(kRows, 0);
  targets[1] = kIgnoredTarget;
  loops.accumulate_logits({z.data(), width, kRows, width, 0}, {maxima.data(), sums.data()});
  loops.loss_backward({z.data(), width, kRows, width, 0}, {maxima.data(), mean.data(), targets.data(), 0.25f});
  for (const auto* values : {&s, &mean, &dx, &maxima, &sums, &z}) keep(*values);
  all.push_back(loops.dot(x.data(), from.data(), count));
  auto windowed = x, gradients = from;
  const int64_t queries = width < kRows ? width : kRows;
  const ScoreStrip strip{windowed.data(), width, queries, width, width - queries + 3, 3, 4};
  loops.softmax(strip, mean.data());
  loops.recompute_softmax(strip, mean.data());
  loops.softmax_backward(strip, gradients.data(), rstd.data());
  for (const auto* values : {&windowed, &gradients, &mean}) keep(*values);
  std::vector<float> head_rstd(3 * kRows / 3);
  loops.head_norms({x.data(), w.data(), y.data(), head_rstd.data(), kRows / 3, 3, width, 3 * width});
  loops.head_norms_weight(
      {x.data(), from.data(), head_rstd.data(), dw.data(), kRows / 3, 3, width, 3 * width, 0, width});
  loops.head_norms_backward({x.data(), w.data(), dx.data(), head_rstd.data(), kRows / 3, 3, width, 3 * width});
  for (const auto* values : {&y, &dw, &dx, &head_rstd}) keep(*values);
  std::vector<float> statistics(3 * kRows), gradient_statistics(3 * kRows);
  const LayerNormRows norm{x.data(), w.data(), b.data(), mean.data(), rstd.data(), y.data(), kRows, width};
  const LayerNormBackwardRows back{x.data(), w.data(), mean.data(), rstd.data(), from.data(), dx.data(), kRows, width};
  loops.split_norm_statistics(norm, statistics.data(), {0, kRows});
  loops.split_norm_forward(norm, {1, statistics.data()}, {0, kRows});
  loops.split_norm_backward_statistics(back, gradient_statistics.data(), {0, kRows});
  loops.split_norm_backward(back, {1, gradient_statistics.data()}, {0, kRows});
  for (const auto* values : {&statistics, &y, &mean, &rstd, &gradient_statistics, &dx}) keep(*values);
  return all;
}

TEST(RowLoops, GiveTheSameBitsWithEveryInstructionSet) {
  for (const int64_t width : {1, 5, 16, 31, 64, 100, 257}) {
    const auto plain = everything(row_loops_plain(), width);
    for (const Isa isa : available_isas()) {
      EXPECT_TRUE(same_bits(everything(row_loops(isa), width), plain)) << name(isa) << ", width " << width;
    }
  }
}

TEST(RowLoops, RoundToBf16LikeTheScalarConversion) {
  RandomValues random(5);
  std::vector<float> values{0.0f,    -0.0f,    1.00390625f, 1.01171875f,
                            3.4e38f, -3.4e38f, 1e-40f,      -1e-45f};  // includes rounding ties and extreme values
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    values.push_back(bad);
    values.push_back(-bad);
  }
  values.push_back(float_from_bits(0x7f800001));  // truncation to 16 bits would turn this NaN into infinity
  while (values.size() < 1003) values.push_back(float_from_bits(static_cast<uint32_t>(random.bits())));
  for (const Isa isa : available_isas()) {
    std::vector<uint16_t> bf16(values.size());
    std::vector<float> back(values.size());
    row_loops(isa).convert(bf16.data(), values.data(), static_cast<int64_t>(values.size()));
    row_loops(isa).convert(back.data(), bf16.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(bf16, rounded(values)) << name(isa);
    EXPECT_TRUE(same_bits(back, widened(bf16))) << name(isa);
  }
}

std::vector<uint16_t> bits_of(const std::vector<Fp16>& values) {
  std::vector<uint16_t> bits;
  for (const Fp16 value : values) bits.push_back(value.bits);
  return bits;
}

// Converts all fp16 values to float, and converts floats of all magnitudes to fp16. Most of these
// floats are in the range of fp16.
TEST(RowLoops, RoundToFp16LikeTheScalarConversion) {
  RandomValues random(6);
  std::vector<Fp16> all(1 << 16);
  std::vector<float> wide(all.size()), values, back(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<uint16_t>(i);
    wide[i] = fp16_to_float(all[i].bits);
    const auto bits = static_cast<uint32_t>(random.bits());
    values.push_back(float_from_bits(i % 4 == 0 ? bits : (bits & 0x83ffffffu) + 0x31000000u + (bits >> 28 << 26)));
  }
  for (const Fp16 value : all) {  // midpoints between adjacent normal fp16 values, and the neighbors of the midpoints
    const uint32_t bits = float_bits(fp16_to_float(value.bits));
    for (const uint32_t more : {0x0fffu, 0x1000u, 0x1001u}) values.push_back(float_from_bits(bits + more));
  }
  std::vector<uint16_t> expected;
  for (const float value : values) expected.push_back(float_to_fp16(value));
  for (const Isa isa : available_isas()) {
    std::vector<Fp16> narrow(values.size());
    row_loops(isa).convert(back.data(), all.data(), static_cast<int64_t>(all.size()));
    EXPECT_TRUE(same_bits(back, wide)) << name(isa);
    row_loops(isa).convert(narrow.data(), values.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(bits_of(narrow), expected) << name(isa);
  }
}

template <typename Short>
std::vector<Short> random_short(RandomValues& random, int64_t count) {
  const auto values = random.floats(count, 1);
  std::vector<Short> narrow(values.size());
  row_loops_plain().convert(narrow.data(), values.data(), count);
  return narrow;
}

// Runs the loops that have inputs and outputs in 16 bits, and returns all results in one array.
template <typename Short>
std::vector<Short> everything_in(const RowLoops& loops, int64_t width) {
  RandomValues random(static_cast<uint64_t>(width));
  const int64_t count = kRows * width;
  const auto x = random.floats(count, 3);
  const auto w = random_short<Short>(random, width), b = random_short<Short>(random, width),
             from = random_short<Short>(random, count);
  std::vector<float> mean(kRows), rstd(kRows);
  std::vector<Short> all, y(static_cast<size_t>(count)), dw(w), db(w), g = from, z = y;
  loops.layer_norm({x.data(), w.data(), b.data(), mean.data(), rstd.data(), y.data(), kRows, width});
  loops.layer_norm_weights(
      {x.data(), mean.data(), rstd.data(), x.data(), dw.data(), db.data(), kRows, width, 0, width, true});
  loops.sum_columns({db.data(), from.data(), kRows, width, 0, width, true});
  loops.gelu_backward(g.data(), y.data(), count);
  loops.gelu(z.data(), y.data(), count);
  loops.add(z.data(), x.data(), count);
  for (const auto* values : {&y, &dw, &db, &g, &z}) all.insert(all.end(), values->begin(), values->end());
  std::vector<float> maxima(kRows, -std::numeric_limits<float>::infinity()), sums(kRows), most(kRows);
  std::vector<int32_t> targets(kRows, 0);
  targets[1] = kIgnoredTarget;
  std::vector<float> tile = x;
  loops.accumulate_logits({tile.data(), width, kRows, width, 0}, {maxima.data(), sums.data(), most.data()});
  loops.keep_logits({z.data(), width, kRows, width, 0}, tile.data(), width, most.data());
  all.insert(all.end(), z.begin(), z.end());
  loops.loss_backward({z.data(), width, kRows, width, 0}, {mean.data(), sums.data(), targets.data(), 0.25f});
  all.insert(all.end(), z.begin(), z.end());
  return all;
}

TEST(RowLoops, GiveTheSameBitsIn16BitsWithEveryInstructionSet) {
  for (const int64_t width : {1, 5, 16, 31, 64, 100, 257}) {
    const auto bf16 = everything_in<uint16_t>(row_loops_plain(), width);
    const auto fp16 = bits_of(everything_in<Fp16>(row_loops_plain(), width));
    EXPECT_NE(fp16, bf16);
    for (const Isa isa : available_isas()) {
      EXPECT_EQ(everything_in<uint16_t>(row_loops(isa), width), bf16) << name(isa) << ", width " << width;
      EXPECT_EQ(bits_of(everything_in<Fp16>(row_loops(isa), width)), fp16) << name(isa) << ", width " << width;
    }
  }
}

TEST(RowLoops, SoftmaxIsCorrectForExtremeScores) {
  // The first query attends only to its own key. The scores of the second query are far apart.
  std::vector<float> x{-300.0f, 99.0f, 99.0f, 80.0f, 100.0f, -100.0f};
  std::vector<float> log_sums(2);
  row_loops().softmax({x.data(), 3, 2, 3, 0}, log_sums.data());
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_EQ(x[1], 0.0f);
  EXPECT_FLOAT_EQ(log_sums[0], -300.0f);
  EXPECT_NEAR(x[3], std::exp(-20.0), 1e-14);
  EXPECT_FLOAT_EQ(x[4], 1.0f);
  EXPECT_EQ(x[5], 0.0f);
}

// Queries 5 to 7 and keys 3 to 8. With a window of 3, query 5 attends to keys 3 to 5.
TEST(RowLoops, SoftmaxStaysInItsWindow) {
  std::vector<float> x(3 * 6, 1.0f), log_sums(3);
  row_loops().softmax({x.data(), 6, 3, 6, 5, 3, 3}, log_sums.data());
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t column = 0; column < 6; ++column) {
      const bool attends = column >= row && column < row + 3;
      EXPECT_FLOAT_EQ(x[static_cast<size_t>(6 * row + column)], attends ? 1.0f / 3 : 0.0f) << row << " " << column;
    }
    EXPECT_FLOAT_EQ(log_sums[static_cast<size_t>(row)], 1 + std::log(3.0f));
  }
}

TEST(RowLoops, ValuesThatAreNotFiniteStayNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(40, 1.0f), y(40);
    x[33] = bad;
    std::vector<float> log_sums(1);
    auto strip = x;
    row_loops().softmax({strip.data(), 40, 1, 40, 39}, log_sums.data());
    EXPECT_FALSE(std::isfinite(log_sums[0]));
    float most = -std::numeric_limits<float>::infinity(), sum = 0;
    row_loops().accumulate_logits({x.data(), 40, 1, 40, 0}, {&most, &sum});
    EXPECT_FALSE(std::isfinite(sum) && std::isfinite(most));
    row_loops().gelu(y.data(), x.data(), 40);
    EXPECT_FALSE(std::isfinite(y[33]));
  }
}

}  // namespace
}  // namespace aliquot::test
