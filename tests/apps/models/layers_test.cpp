#include "apps/models/layers/layers.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/loss.h"
#include "kernels/gemm/product.h"
#include "tests/support/all_close.h"
#include "tests/support/random_values.h"
#include "tests/support/reference_layers.h"

namespace aliquot::test {
namespace {

constexpr double kForward = 2e-6, kGradient = 2e-5;

// Returns the dot product of output and direction. If `direction` is the output gradient, backward computes the
// gradient of this dot product.
double along(const Doubles& output, const std::vector<float>& direction) {
  double sum = 0;
  for (size_t i = 0; i < output.size(); ++i) sum += output[i] * static_cast<double>(direction[i]);
  return sum;
}

std::vector<float> zeros(int64_t count) { return std::vector<float>(static_cast<size_t>(count)); }

class Layers : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
  RandomValues random_{7};
  std::vector<float> product_scratch_ =
      zeros(GetParam() * product_scratch_elements(DType::kFloat32, DType::kFloat32, Bf16ProductMethod::kWidened));
};
INSTANTIATE_TEST_SUITE_P(Threads, Layers, testing::Values(1, 2, 3));

TEST_P(Layers, LayerNormMatchesFiniteDifferences) {
  const int64_t rows = 5, width = 37;
  const auto x = random_.floats(rows * width, 2), weight = random_.floats(width), bias = random_.floats(width);
  const auto from = random_.floats(rows * width);
  auto mean = zeros(rows), rstd = zeros(rows), y = zeros(rows * width);
  layer_norm_forward(pool_, {x.data(), weight.data(), bias.data(), mean.data(), rstd.data(), y.data(), rows, width});
  EXPECT_TRUE(all_close(y, reference_layer_norm(widen(x), widen(weight), widen(bias)), kForward));

  auto dx = random_.floats(rows * width), dw = zeros(width), db = zeros(width);
  const auto before = dx;
  layer_norm_backward_weights(pool_, {.x = x.data(),
                                      .mean = mean.data(),
                                      .rstd = rstd.data(),
                                      .from = from.data(),
                                      .weight = dw.data(),
                                      .bias = db.data(),
                                      .rows = rows,
                                      .width = width});
  layer_norm_backward(pool_,
                      {x.data(), weight.data(), mean.data(), rstd.data(), from.data(), dx.data(), rows, width, true});
  const auto loss = [&](const Doubles& v, const Doubles& w, const Doubles& b) {
    return along(reference_layer_norm(v, w, b), from);
  };
  Doubles expected =
      difference_gradient(widen(x), [&](const Doubles& v) { return loss(v, widen(weight), widen(bias)); });
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(before[i]);
  EXPECT_TRUE(all_close(dx, expected, kGradient));
  EXPECT_TRUE(all_close(
      dw, difference_gradient(widen(weight), [&](const Doubles& v) { return loss(widen(x), v, widen(bias)); }),
      kGradient));
  EXPECT_TRUE(all_close(
      db, difference_gradient(widen(bias), [&](const Doubles& v) { return loss(widen(x), widen(weight), v); }),
      kGradient));
}

// The output is a range of columns of a wider matrix, as for queries, keys and values.
TEST_P(Layers, LinearHasABiasInWiderRows) {
  const int64_t rows = 6, inputs = 19, outputs = 23, stride = 40;
  const auto x = random_.floats(rows * inputs), weight = random_.floats(inputs * outputs),
             bias = random_.floats(outputs), from = random_.floats(rows * stride);
  const Linear linear{.weight = weight.data(),
                      .bias = bias.data(),
                      .rows = rows,
                      .inputs = inputs,
                      .outputs = outputs,
                      .scratch = product_scratch_.data(),
                      .output_stride = stride};
  const auto before = random_.floats(rows * stride);
  auto y = before, dw = zeros(inputs * outputs), db = random_.floats(outputs);
  const auto db_before = db;
  linear_forward(pool_, linear, x.data(), nullptr, y.data());
  linear_backward_weights(pool_, linear, x.data(), from.data(), {dw.data(), db.data(), true});
  const Doubles expected = reference_linear(widen(x), widen(weight), widen(bias));
  std::vector<float> got;
  Doubles sums = widen(db_before);
  for (int64_t i = 0; i < rows * stride; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i % stride >= outputs) {
      EXPECT_EQ(y[at], before[at]);
      continue;
    }
    got.push_back(y[at]);
    sums[static_cast<size_t>(i % stride)] += static_cast<double>(from[at]);
  }
  EXPECT_TRUE(all_close(got, expected, kForward));
  EXPECT_TRUE(all_close(db, sums, kForward));
}

TEST_P(Layers, LinearMatchesFiniteDifferences) {
  const int64_t rows = 6, inputs = 19, outputs = 23;
  const auto x = random_.floats(rows * inputs), weight = random_.floats(inputs * outputs),
             bias = random_.floats(outputs);
  const auto from = random_.floats(rows * outputs), residual = random_.floats(rows * outputs);
  const Linear linear{.weight = weight.data(),
                      .bias = bias.data(),
                      .rows = rows,
                      .inputs = inputs,
                      .outputs = outputs,
                      .scratch = product_scratch_.data()};
  auto y = zeros(rows * outputs);
  linear_forward(pool_, linear, x.data(), residual.data(), y.data());
  Doubles expected = reference_linear(widen(x), widen(weight), widen(bias));
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(residual[i]);
  EXPECT_TRUE(all_close(y, expected, kForward));

  auto dx = zeros(rows * inputs), dw = zeros(inputs * outputs), db = zeros(outputs);
  linear_backward_input(pool_, linear, from.data(), dx.data());
  linear_backward_weights(pool_, linear, x.data(), from.data(), {dw.data(), db.data(), false});
  const auto loss = [&](const Doubles& v, const Doubles& w, const Doubles& b) {
    return along(reference_linear(v, w, b), from);
  };
  EXPECT_TRUE(all_close(
      dx, difference_gradient(widen(x), [&](const Doubles& v) { return loss(v, widen(weight), widen(bias)); }),
      kGradient));
  EXPECT_TRUE(all_close(
      dw, difference_gradient(widen(weight), [&](const Doubles& v) { return loss(widen(x), v, widen(bias)); }),
      kGradient));
  EXPECT_TRUE(all_close(
      db, difference_gradient(widen(bias), [&](const Doubles& v) { return loss(widen(x), widen(weight), v); }),
      kGradient));

  auto twice = dw, bias_twice = db;
  linear_backward_weights(pool_, linear, x.data(), from.data(), {twice.data(), bias_twice.data(), true});
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * dw[i]);
  for (size_t i = 0; i < db.size(); ++i) EXPECT_FLOAT_EQ(bias_twice[i], 2 * db[i]);
}

TEST_P(Layers, GeluMatchesFiniteDifferences) {
  auto x = random_.floats(301, 6);
  x[0] = -60.0f;
  x[1] = 60.0f;
  x[2] = 0.0f;
  auto y = zeros(301);
  gelu_forward(pool_, y.data(), x.data(), 301);
  Doubles expected = widen(x), slope(x.size());
  auto gradient = random_.floats(301);
  for (size_t i = 0; i < x.size(); ++i) {
    slope[i] = (reference_gelu(expected[i] + 1e-5) - reference_gelu(expected[i] - 1e-5)) / 2e-5 *
               static_cast<double>(gradient[i]);
    expected[i] = reference_gelu(expected[i]);
  }
  gelu_backward(pool_, gradient.data(), x.data(), 301);
  EXPECT_TRUE(all_close(y, expected, 1e-7));
  EXPECT_TRUE(all_close(gradient, slope, kGradient));
}

TEST_P(Layers, TokenAndPositionGradientsAreSummedByRow) {
  const int64_t batch = 2, sequence = 5, context = 7, width = 35, entries = 4;
  const std::vector<int32_t> tokens{3, 1, 1, 0, 3, 3, 3, 1, 0, 1};
  const auto table = random_.floats(entries * width), positions = random_.floats(context * width);
  const auto from = random_.floats(batch * sequence * width);
  auto y = zeros(batch * sequence * width), d_table = zeros(entries * width),
       d_positions = random_.floats(context * width);
  const EmbeddingRows embedding{tokens.data(), batch * sequence, width, entries};
  embedding_forward(pool_, embedding, table.data(), y.data());
  const auto embedded = y;
  positions_forward(pool_, {batch * sequence, sequence, width, context}, positions.data(), embedded.data(), y.data());
  embedding_backward(pool_, embedding, from.data(), d_table.data());
  positions_backward(pool_, {batch * sequence, sequence, width, context}, from.data(), d_positions.data(), false);
  Doubles want_table(d_table.size()), want_positions(d_positions.size());
  for (int64_t i = 0; i < batch * sequence * width; ++i) {
    const int64_t row = i / width, column = i % width;
    const auto entry = static_cast<size_t>(tokens[static_cast<size_t>(row)] * width + column);
    const auto position = static_cast<size_t>(row % sequence * width + column);
    EXPECT_EQ(y[static_cast<size_t>(i)], table[entry] + positions[position]);
    want_table[entry] += static_cast<double>(from[static_cast<size_t>(i)]);
    want_positions[position] += static_cast<double>(from[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(all_close(d_table, want_table, kForward));
  EXPECT_TRUE(all_close(d_positions, want_positions, kForward));
}

class AttentionWindows : public testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  ThreadPool pool_{std::get<0>(GetParam())};
  RandomValues random_{7};
};
// Without a window, and with windows of one token, of less and more than a strip of queries, and of the whole sequence.
INSTANTIATE_TEST_SUITE_P(ThreadsAndWindows, AttentionWindows,
                         testing::Combine(testing::Values(1, 3), testing::Values(0, 1, 2, 7, 63, 65, 70, 100)));

TEST_P(AttentionWindows, AttentionMatchesFiniteDifferences) {
  const int64_t window = std::get<1>(GetParam());
  // Two strips of queries. No extent is a multiple of the SIMD width.
  const AttentionShape shape{2, 70, 3, 5, 3, window};
  const int64_t rows = shape.batch * shape.sequence;
  const auto qkv = random_.floats(rows * shape.stride(), 2);
  auto from = random_.floats(rows * shape.width());
  auto y = zeros(rows * shape.width()), log_sums = zeros(rows * shape.heads),
       d_qkv = random_.floats(rows * shape.stride());
  auto scratch = zeros(pool_.thread_count() * attention_scratch_elements(shape, DType::kFloat32));
  attention_forward(pool_, {shape, qkv.data(), y.data(), log_sums.data(), scratch.data()});
  const auto reference = [&](const Doubles& v) {
    return reference_attention(v, shape.batch, shape.sequence, shape.heads, shape.head_width, window);
  };
  EXPECT_TRUE(all_close(y, reference(widen(qkv)), kForward));
  attention_backward(pool_, {shape, qkv.data(), y.data(), log_sums.data(), from.data(), d_qkv.data(), scratch.data()});
  // Checks only every third element to save time.
  Doubles x = widen(qkv), expected;
  std::vector<float> got;
  for (size_t i = 0; i < x.size(); i += 3) {
    const double value = x[i];
    x[i] = value + 1e-5;
    const double above = along(reference(x), from);
    x[i] = value - 1e-5;
    expected.push_back((above - along(reference(x), from)) / 2e-5);
    got.push_back(d_qkv[i]);
    x[i] = value;
  }
  EXPECT_TRUE(all_close(got, expected, kGradient));
}

// Forward and backward skip keys before the window: with NaN in these keys, a product with probability 0 would be NaN.
TEST_P(AttentionWindows, KeysOutsideTheWindowAreSkipped) {
  const int64_t window = std::get<1>(GetParam()), sequence = 300, hidden = 100;
  const AttentionShape shape{1, sequence, 2, 4, 1, window};
  auto qkv = random_.floats(sequence * shape.stride(), 2);
  auto from = random_.floats(sequence * shape.width());
  auto log_sums = zeros(sequence * shape.heads),
       scratch = zeros(pool_.thread_count() * attention_scratch_elements(shape, DType::kFloat32));
  struct Results {
    std::vector<float> y, d_qkv;
  };
  const auto results = [&] {
    Results found{zeros(sequence * shape.width()), zeros(sequence * shape.stride())};
    attention_forward(pool_, {shape, qkv.data(), found.y.data(), log_sums.data(), scratch.data()});
    attention_backward(
        pool_, {shape, qkv.data(), found.y.data(), log_sums.data(), from.data(), found.d_qkv.data(), scratch.data()});
    return found;
  };
  const Results expected = results();
  std::fill(qkv.begin(), qkv.begin() + hidden * shape.stride(), std::numeric_limits<float>::quiet_NaN());
  const Results got = results();
  // With every window, the queries from 256 on attend only to later positions.
  const auto from_256 = [&](const std::vector<float>& values) {
    return std::vector<float>(values.begin() + 256 * (std::ssize(values) / sequence), values.end());
  };
  const bool skips = window != 0;
  EXPECT_EQ(same_bits(from_256(got.y), from_256(expected.y)), skips);
  EXPECT_EQ(same_bits(from_256(got.d_qkv), from_256(expected.d_qkv)), skips);
  const AttentionShape whole{1, sequence, 2, 4, 1};
  EXPECT_EQ(attention_scratch_elements(shape, DType::kFloat32) < attention_scratch_elements(whole, DType::kFloat32),
            skips);
}

TEST_P(Layers, LossMatchesFiniteDifferences) {
  const int64_t rows = 5, width = 6, entries = kLossTileEntries + 11;  // two tiles of the vocabulary
  const auto hidden = random_.floats(rows * width, 4), table = random_.floats(entries * width, 3);
  const std::vector<int32_t> targets{0, static_cast<int32_t>(entries - 1), 2095, 2096, 77};
  std::vector<float> kept_hidden, kept_table;
  for (const bool keep_logits : {true, false}) {
    const LossShape shape{rows, width, entries, keep_logits};
    auto logits = zeros(shape.logits_elements()), maxima = zeros(rows), log_sums = zeros(rows),
         scratch = zeros(2 * rows);
    const LossBuffers buffers{logits.data(), maxima.data(), log_sums.data(),        scratch.data(),
                              nullptr,       nullptr,       product_scratch_.data()};
    const double loss = loss_forward(pool_, {shape, hidden.data(), table.data(), targets.data(), buffers});
    const double expected = reference_loss(widen(hidden), widen(table), targets);
    EXPECT_NEAR(loss, expected, 1e-6 * expected);
    auto d_hidden = random_.floats(rows * width), d_table = random_.floats(entries * width);
    loss_backward(pool_, {shape, hidden.data(), table.data(), targets.data(), buffers, 0.5f, d_hidden.data(),
                          d_table.data(), false});
    if (keep_logits) {
      kept_hidden = d_hidden;
      kept_table = d_table;
    }
    EXPECT_TRUE(same_bits(d_hidden, kept_hidden));
    EXPECT_TRUE(same_bits(d_table, kept_table));
    EXPECT_TRUE(
        all_close(d_hidden,
                  difference_gradient(widen(hidden),
                                      [&](const Doubles& v) { return 0.5 * reference_loss(v, widen(table), targets); }),
                  kGradient));
    Doubles some = widen(table), want;
    std::vector<float> got;
    for (size_t i = 0; i < some.size(); i += 97) {
      const double value = some[i];
      some[i] = value + 1e-4;
      const double above = reference_loss(widen(hidden), some, targets);
      some[i] = value - 1e-4;
      want.push_back(0.5 * (above - reference_loss(widen(hidden), some, targets)) / 2e-4);
      some[i] = value;
      got.push_back(d_table[i]);
    }
    EXPECT_TRUE(all_close(got, want, kGradient));
  }
}

/// Two parts of the vocabulary give the loss and the gradients of the whole vocabulary.
TEST_P(Layers, LossInPartsMatchesTheWhole) {
  const int64_t rows = 6, width = 5, entries = kLossTileEntries + 70, first = 33;
  const auto hidden = random_.floats(rows * width, 4), table = random_.floats(entries * width, 3);
  const std::vector<int32_t> targets{kIgnoredTarget, 3, 32, 33, 2100, 77};
  const auto loss_of = [&](const LossShape& shape, std::vector<float>& logits, std::vector<float>& rest) {
    logits = zeros(shape.logits_elements());
    return LossForward{shape,
                       hidden.data(),
                       table.data() + shape.first_entry * width,
                       targets.data(),
                       {logits.data(), rest.data(), rest.data() + rows, rest.data() + 2 * rows, nullptr, nullptr,
                        product_scratch_.data()}};
  };
  const auto backward = [&](const LossForward& a, std::vector<float>& d_hidden, float* d_table) {
    loss_backward(pool_, {a.shape, a.hidden, a.table, a.targets, a.buffers, 0.5f, d_hidden.data(), d_table, false});
  };
  std::vector<float> logits, rest = zeros(4 * rows), d_hidden = zeros(rows * width), d_table = zeros(entries * width);
  const LossForward whole = loss_of({rows, width, entries}, logits, rest);
  const double loss = loss_forward(pool_, whole);
  backward(whole, d_hidden, d_table.data());
  std::array<std::vector<float>, 2> part_logits, part_d_hidden{zeros(rows * width), zeros(rows * width)};
  std::vector<float> part_rest = zeros(4 * rows), statistics = zeros(6 * rows), d_parts = zeros(entries * width);
  const std::array parts{loss_of({rows, width, first}, part_logits[0], part_rest),
                         loss_of({rows, width, entries - first, true, first}, part_logits[1], part_rest)};
  for (size_t p = 0; p < parts.size(); ++p) loss_statistics(pool_, parts[p], statistics.data() + 3 * rows * p);
  EXPECT_NEAR(loss_of_parts(parts[0], {2, statistics.data()}), loss, 1e-6 * loss);
  for (size_t p = 0; p < parts.size(); ++p)
    backward(parts[p], part_d_hidden[p], d_parts.data() + parts[p].shape.first_entry * width);
  for (size_t i = 0; i < d_hidden.size(); ++i) part_d_hidden[0][i] += part_d_hidden[1][i];
  EXPECT_TRUE(all_close(part_d_hidden[0], widen(d_hidden), 1e-5));
  EXPECT_TRUE(all_close(d_parts, widen(d_table), 1e-5));
}

// The reference is the loss of the rows that count alone.
TEST_P(Layers, IgnoredTargetsDoNotCount) {
  const int64_t rows = 6, width = 5, entries = kLossTileEntries + 11;  // two tiles of the vocabulary
  const auto hidden = random_.floats(rows * width, 4), table = random_.floats(entries * width, 3);
  const std::vector<int32_t> targets{kIgnoredTarget, 3, kIgnoredTarget, 2100, 77, kIgnoredTarget};
  const std::vector<size_t> counted{1, 3, 4};
  struct Results {
    double loss;
    std::vector<float> d_hidden, d_table;
  };
  const auto results = [&](const std::vector<float>& x, const std::vector<int32_t>& to, bool keep_logits) {
    const LossShape shape{std::ssize(to), width, entries, keep_logits};
    auto logits = zeros(shape.logits_elements()), maxima = zeros(shape.rows), log_sums = zeros(shape.rows),
         scratch = random_.floats(2 * shape.rows);
    const LossBuffers buffers{logits.data(), maxima.data(), log_sums.data(),        scratch.data(),
                              nullptr,       nullptr,       product_scratch_.data()};
    Results found{0, random_.floats(std::ssize(x)), random_.floats(entries * width)};
    found.loss = loss_forward(pool_, {shape, x.data(), table.data(), to.data(), buffers});
    loss_backward(pool_, {shape, x.data(), table.data(), to.data(), buffers, 0.5f, found.d_hidden.data(),
                          found.d_table.data(), false});
    return found;
  };
  std::vector<float> counted_hidden;
  std::vector<int32_t> counted_targets;
  for (const size_t row : counted) {
    counted_targets.push_back(targets[row]);
    for (size_t i = 0; i < width; ++i) counted_hidden.push_back(hidden[row * width + i]);
  }
  for (const bool keep_logits : {true, false}) {
    const Results got = results(hidden, targets, keep_logits);
    const Results expected = results(counted_hidden, counted_targets, keep_logits);
    EXPECT_EQ(got.loss, expected.loss);
    auto d_hidden = zeros(rows * width);
    for (size_t i = 0; i < expected.d_hidden.size(); ++i)
      d_hidden[counted[i / width] * width + i % width] = expected.d_hidden[i];
    EXPECT_EQ(got.d_hidden, d_hidden);  // exactly 0 in the rows of ignored targets
    EXPECT_TRUE(all_close(got.d_table, widen(expected.d_table), 1e-5));
  }
}

}  // namespace
}  // namespace aliquot::test
