// Compares the layers in bf16 with references in double, for the same bf16 inputs. Outputs in fp32 must be as accurate
// as with fp32 inputs. Outputs in bf16 may have one more rounding error.
#include <cmath>
#include <gtest/gtest.h>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "kernels/gemm/product.h"
#include "tests/support/all_close.h"
#include "tests/support/bf16_values.h"
#include "tests/support/reference_layers.h"

namespace aliquot::test {
namespace {

using Bf16 = std::vector<uint16_t>;

constexpr double kFp32 = 2e-5;
constexpr double kRounded = kHalfUlp + kFp32;

Doubles widen(const Bf16& from) { return test::widen(widened(from)); }

/// Returns the dot product of output and direction. If `direction` is the output gradient, backward computes the
/// gradient of this dot product.
double along(const Doubles& output, const Doubles& direction) {
  double sum = 0;
  for (size_t i = 0; i < output.size(); ++i) sum += output[i] * direction[i];
  return sum;
}

template <typename Real>
std::vector<Real> zeros(int64_t count) {
  return std::vector<Real>(static_cast<size_t>(count));
}

class Bf16Layers : public testing::TestWithParam<int> {
 protected:
  Bf16 bf16(int64_t count, float scale = 1.0f) { return random_bf16(random_, count, scale); }

  ThreadPool pool_{GetParam()};
  RandomValues random_{7};
  std::vector<float> scratch_ = zeros<float>(
      GetParam() * product_scratch_elements(DType::kBFloat16, DType::kBFloat16, Bf16ProductMethod::kWidened));
};
INSTANTIATE_TEST_SUITE_P(Threads, Bf16Layers, testing::Values(1, 2, 3));

TEST_P(Bf16Layers, LayerNorm) {
  const int64_t rows = 5, width = 37;
  const auto x = random_.floats(rows * width, 2), from = random_.floats(rows * width);
  const Bf16 weight = bf16(width), bias = bf16(width);
  auto mean = zeros<float>(rows), rstd = mean, dx = zeros<float>(rows * width);
  auto y = zeros<uint16_t>(rows * width), dw = zeros<uint16_t>(width), db = dw;
  layer_norm_forward(pool_, {x.data(), weight.data(), bias.data(), mean.data(), rstd.data(), y.data(), rows, width});
  EXPECT_TRUE(all_close(widened(y), reference_layer_norm(test::widen(x), widen(weight), widen(bias)), kRounded));
  layer_norm_backward_weights(pool_, {.x = x.data(),
                                      .mean = mean.data(),
                                      .rstd = rstd.data(),
                                      .from = from.data(),
                                      .weight = dw.data(),
                                      .bias = db.data(),
                                      .rows = rows,
                                      .width = width});
  layer_norm_backward(pool_,
                      {x.data(), weight.data(), mean.data(), rstd.data(), from.data(), dx.data(), rows, width, false});
  const Doubles direction = test::widen(from);
  const auto loss = [&](const Doubles& v, const Doubles& w, const Doubles& b) {
    return along(reference_layer_norm(v, w, b), direction);
  };
  const auto by_x = [&](const Doubles& v) { return loss(v, widen(weight), widen(bias)); };
  const auto by_weight = [&](const Doubles& w) { return loss(test::widen(x), w, widen(bias)); };
  const auto by_bias = [&](const Doubles& b) { return loss(test::widen(x), widen(weight), b); };
  EXPECT_TRUE(all_close(dx, difference_gradient(test::widen(x), by_x), kFp32));
  EXPECT_TRUE(all_close(widened(dw), difference_gradient(widen(weight), by_weight), kRounded));
  EXPECT_TRUE(all_close(widened(db), difference_gradient(widen(bias), by_bias), kRounded));
}

TEST_P(Bf16Layers, Linear) {
  const int64_t rows = 6, inputs = 19, outputs = 23;
  const Bf16 x = bf16(rows * inputs), weight = bf16(inputs * outputs), bias = bf16(outputs),
             from = bf16(rows * outputs);
  const auto residual = random_.floats(rows * outputs);
  Linear linear{.weight = weight.data(), .bias = bias.data(), .rows = rows, .inputs = inputs, .outputs = outputs};
  linear.scratch = scratch_.data();
  Doubles expected = reference_linear(widen(x), widen(weight), widen(bias));
  auto y = zeros<uint16_t>(rows * outputs);
  linear_forward(pool_, linear, x.data(), nullptr, y.data());
  EXPECT_TRUE(all_close(widened(y), expected, kRounded));
  auto stream = zeros<float>(rows * outputs);
  linear_forward(pool_, linear, x.data(), residual.data(), stream.data());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(residual[i]);
  EXPECT_TRUE(all_close(stream, expected, kFp32));

  auto dx = zeros<uint16_t>(rows * inputs), dw = zeros<uint16_t>(inputs * outputs), db = zeros<uint16_t>(outputs);
  auto dw_32 = zeros<float>(inputs * outputs), db_32 = zeros<float>(outputs);
  linear_backward_input(pool_, linear, from.data(), dx.data());
  linear_backward_weights(pool_, linear, x.data(), from.data(), {dw.data(), db.data(), false});
  linear_backward_weights(pool_, linear, x.data(), from.data(), {dw_32.data(), db_32.data(), false});
  const auto loss = [&](const Doubles& v, const Doubles& w, const Doubles& b) {
    return along(reference_linear(v, w, b), widen(from));
  };
  const Doubles want_x =
      difference_gradient(widen(x), [&](const Doubles& v) { return loss(v, widen(weight), widen(bias)); });
  const Doubles want_weight =
      difference_gradient(widen(weight), [&](const Doubles& v) { return loss(widen(x), v, widen(bias)); });
  const Doubles want_bias =
      difference_gradient(widen(bias), [&](const Doubles& v) { return loss(widen(x), widen(weight), v); });
  EXPECT_TRUE(all_close(widened(dx), want_x, kRounded));
  EXPECT_TRUE(all_close(widened(dw), want_weight, kRounded));
  EXPECT_TRUE(all_close(widened(db), want_bias, kRounded));
  EXPECT_TRUE(all_close(dw_32, want_weight, kFp32));
  EXPECT_TRUE(all_close(db_32, want_bias, kFp32));
  linear_backward_weights(pool_, linear, x.data(), from.data(), {dw.data(), db.data(), true});
  Doubles twice = want_weight;
  for (double& value : twice) value *= 2;
  EXPECT_TRUE(all_close(widened(dw), twice, kHalfUlp / 2 + kRounded));  // rounded twice: the first sum, and the total
}

TEST_P(Bf16Layers, Gelu) {
  const Bf16 x = bf16(301, 6), from = bf16(301);
  Bf16 y(x.size()), gradient = from;
  gelu_forward(pool_, y.data(), x.data(), 301);
  gelu_backward(pool_, gradient.data(), x.data(), 301);
  Doubles expected = widen(x), slope = widen(from);
  for (size_t i = 0; i < x.size(); ++i) {
    slope[i] *= (reference_gelu(expected[i] + 1e-5) - reference_gelu(expected[i] - 1e-5)) / 2e-5;
    expected[i] = reference_gelu(expected[i]);
  }
  EXPECT_TRUE(all_close(widened(y), expected, kRounded));
  EXPECT_TRUE(all_close(widened(gradient), slope, kRounded));
}

TEST_P(Bf16Layers, TokensAndPositions) {
  const int64_t rows = 6, width = 35;
  const std::vector<int32_t> tokens{3, 1, 1, 0, 3, 3};
  const Bf16 table = bf16(4 * width), positions = bf16(3 * width);
  const auto from = random_.floats(rows * width);
  auto y = zeros<float>(rows * width);
  auto d_table = zeros<uint16_t>(4 * width), d_positions = bf16(3 * width);
  embedding_forward(pool_, {tokens.data(), rows, width, 4}, table.data(), y.data());
  const auto embedded = y;
  positions_forward(pool_, {6, 3, width, 3}, positions.data(), embedded.data(), y.data());
  embedding_backward(pool_, {tokens.data(), rows, width, 4}, from.data(), d_table.data());
  positions_backward(pool_, {6, 3, width, 3}, from.data(), d_positions.data(), false);
  Doubles want_table(d_table.size()), want_positions(d_positions.size());
  for (int64_t i = 0; i < rows * width; ++i) {
    const auto entry = static_cast<size_t>(tokens[static_cast<size_t>(i / width)] * width + i % width);
    const auto position = static_cast<size_t>(i / width % 3 * width + i % width);
    EXPECT_EQ(y[static_cast<size_t>(i)], bf16_to_float(table[entry]) + bf16_to_float(positions[position]));
    want_table[entry] += static_cast<double>(from[static_cast<size_t>(i)]);
    want_positions[position] += static_cast<double>(from[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(all_close(widened(d_table), want_table, 3 * kRounded));  // a token occurs at most three times
  EXPECT_TRUE(all_close(widened(d_positions), want_positions, 2 * kRounded));
}

// Computes the gradient of `loss` by finite differences, at every `stride`-th element of x.
Doubles some_differences(Doubles x, size_t stride, const std::function<double(const Doubles&)>& loss) {
  Doubles gradient;
  for (size_t i = 0; i < x.size(); i += stride) {
    const double value = x[i];
    x[i] = value + 1e-5;
    const double above = loss(x);
    x[i] = value - 1e-5;
    gradient.push_back((above - loss(x)) / 2e-5);
    x[i] = value;
  }
  return gradient;
}

TEST_P(Bf16Layers, Attention) {
  const AttentionShape shape{2, 70, 3, 5, 3};
  const int64_t rows = shape.batch * shape.sequence;
  const Bf16 qkv = bf16(rows * shape.stride(), 2);
  auto from = random_.floats(rows * shape.width());
  auto y = zeros<uint16_t>(rows * shape.width()), d_qkv = zeros<uint16_t>(rows * shape.stride());
  auto log_sums = zeros<float>(rows * shape.heads);
  auto scratch = zeros<float>(pool_.thread_count() * attention_scratch_elements(shape, DType::kBFloat16));
  attention_forward(pool_, {shape, qkv.data(), y.data(), log_sums.data(), scratch.data()});
  const auto reference = [&](const Doubles& v) {
    return reference_attention(v, shape.batch, shape.sequence, shape.heads, shape.head_width);
  };
  EXPECT_TRUE(all_close(widened(y), reference(widen(qkv)), kRounded));
  attention_backward(pool_, {shape, qkv.data(), y.data(), log_sums.data(), from.data(), d_qkv.data(), scratch.data()});
  const Doubles direction = test::widen(from);
  const auto expected =
      some_differences(widen(qkv), 7, [&](const Doubles& v) { return along(reference(v), direction); });
  std::vector<float> got;
  for (size_t i = 0; i < d_qkv.size(); i += 7) got.push_back(bf16_to_float(d_qkv[i]));
  // Backward reads the rounded output to compute the mean gradient of a row, which adds an error of the same size.
  EXPECT_TRUE(all_close(got, expected, 2 * kRounded));
}

/// The results of loss_backward in double, and bounds of their rounding errors. The logits of a row are computed in
/// tiles of kLossTileEntries vocabulary entries. A logit is stored as its distance to the largest logit of its row and
/// tile, so its error is at most half an ulp of that distance. The bound uses the largest logit of the row, which is at
/// least as far away. Rounding of the logit's gradient adds at most half an ulp of the gradient.
struct LossReference {
  Doubles d_hidden, hidden_bound, d_table, table_bound;
};

LossReference loss_reference(const Doubles& hidden, const Doubles& table, const std::vector<int32_t>& targets,
                             double factor) {
  const size_t rows = targets.size(), width = hidden.size() / rows, entries = table.size() / width;
  LossReference r{Doubles(hidden.size()), Doubles(hidden.size()), Doubles(table.size()), Doubles(table.size())};
  Doubles logits(entries);
  for (size_t row = 0; row < rows; ++row) {
    double maximum = -1e300, sum = 0;
    for (size_t e = 0; e < entries; ++e) {
      logits[e] = 0;
      for (size_t i = 0; i < width; ++i) logits[e] += hidden[row * width + i] * table[e * width + i];
      maximum = std::max(maximum, logits[e]);
    }
    for (const double logit : logits) sum += std::exp(logit - maximum);
    for (size_t e = 0; e < entries; ++e) {
      const double p = std::exp(logits[e] - maximum) / sum;
      const double g = factor * (p - (static_cast<size_t>(targets[row]) == e ? 1.0 : 0.0));
      const double bound = kHalfUlp * (factor * p * (maximum - logits[e]) * 1.01 + std::abs(g)) + kFp32 * factor * p;
      for (size_t i = 0; i < width; ++i) {
        r.d_hidden[row * width + i] += g * table[e * width + i];
        r.hidden_bound[row * width + i] += bound * std::abs(table[e * width + i]);
        r.d_table[e * width + i] += g * hidden[row * width + i];
        r.table_bound[e * width + i] += bound * std::abs(hidden[row * width + i]);
      }
    }
  }
  return r;
}

void expect_within(const std::vector<float>& got, const Doubles& expected, const Doubles& bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], bound[i] + kFp32 * std::abs(expected[i]) + 1e-9) << i;
  }
}

TEST_P(Bf16Layers, Loss) {
  const int64_t rows = 5, width = 6, entries = kLossTileEntries + 11;  // two tiles of the vocabulary
  const Bf16 hidden = bf16(rows * width, 4), table = bf16(entries * width, 3);
  const std::vector<int32_t> targets{0, static_cast<int32_t>(entries - 1), 2095, 2096, 77};
  const LossReference expected = loss_reference(widen(hidden), widen(table), targets, 0.5);
  std::vector<float> kept_hidden, kept_table;
  for (const bool keep_logits : {true, false}) {
    const LossShape shape{rows, width, entries, keep_logits};
    auto logits = zeros<uint16_t>(shape.logits_elements());
    auto maxima = zeros<float>(rows), log_sums = maxima, row_scratch = zeros<float>(2 * rows),
         tile = zeros<float>(rows * shape.tile_entries()), tile_maxima = zeros<float>(rows * shape.tile_count());
    const LossBuffers buffers{logits.data(), maxima.data(),      log_sums.data(), row_scratch.data(),
                              tile.data(),   tile_maxima.data(), scratch_.data()};
    const double loss = loss_forward(pool_, {shape, hidden.data(), table.data(), targets.data(), buffers});
    const double reference = reference_loss(widen(hidden), widen(table), targets);
    EXPECT_NEAR(loss, reference, 1e-6 * reference);  // the tolerance with fp32 inputs
    auto d_hidden = zeros<float>(rows * width), d_table = zeros<float>(entries * width);
    loss_backward(pool_, {shape, hidden.data(), table.data(), targets.data(), buffers, 0.5f, d_hidden.data(),
                          d_table.data(), false});
    expect_within(d_hidden, expected.d_hidden, expected.hidden_bound);
    expect_within(d_table, expected.d_table, expected.table_bound);
    if (keep_logits) {
      kept_hidden = d_hidden;
      kept_table = d_table;
    }
    EXPECT_TRUE(same_bits(d_hidden, kept_hidden));
    EXPECT_TRUE(same_bits(d_table, kept_table));
  }
}

}  // namespace
}  // namespace aliquot::test
