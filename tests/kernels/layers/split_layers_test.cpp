// Compares layers that ranks divide with the same layers in one piece, computed in double.
#include "kernels/layers/split_layers.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/layers/row_loops.h"
#include "tests/support/all_close.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

/// Elements [begin, end) of a dimension, for one of `count` parts. If the division is uneven, the first parts are
/// larger.
struct Part {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};
Part part_of(int64_t extent, int part, int count) {
  const auto first = [&](int p) { return extent / count * p + std::min<int64_t>(p, extent % count); };
  return {first(part), first(part + 1)};
}

/// An array of one type, and its exact values in fp32.
class TypedArray {
 public:
  TypedArray(DType type, const std::vector<float>& values)
      : type_(type), count_(std::ssize(values)), bytes_(values.size() * 4) {
    row_loops().convert(this->values(), values.data(), count_);
  }
  Values values() { return {bytes_.data(), type_}; }
  std::vector<float> floats() {
    std::vector<float> wide(static_cast<size_t>(count_));
    row_loops().convert(wide.data(), values(), count_);
    return wide;
  }

 private:
  DType type_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

/// Columns of a matrix of `width` columns, as a dense matrix.
std::vector<float> columns(const std::vector<float>& matrix, int64_t width, const Part& part) {
  std::vector<float> result;
  for (size_t row = 0; row < matrix.size(); row += static_cast<size_t>(width)) {
    const auto at = matrix.begin() + static_cast<std::ptrdiff_t>(row);
    result.insert(result.end(), at + part.begin, at + part.end);
  }
  return result;
}

/// The inverse of columns(): stores dense columns of a matrix in the whole matrix.
void put_columns(std::vector<float>& matrix, int64_t width, const Part& part, const std::vector<float>& from) {
  for (size_t i = 0; i < from.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / part.count(), column = static_cast<int64_t>(i) % part.count();
    matrix[static_cast<size_t>(row * width + part.begin + column)] = from[i];
  }
}

struct Case {
  DType type;
  int parts;
};

class SplitLayers : public testing::TestWithParam<Case> {
 protected:
  DType type() const { return GetParam().type; }
  int parts() const { return GetParam().parts; }
  std::vector<float> random(int64_t count, float scale = 1.0f) {
    return TypedArray(type(), random_.floats(count, scale)).floats();
  }
  /// Results in 16 bits have one rounding.
  double tolerance() const {
    if (type() == DType::kFloat32) return 1e-5;
    return type() == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
  }

  RandomValues random_{7};
};

INSTANTIATE_TEST_SUITE_P(All, SplitLayers,
                         testing::Values(Case{DType::kFloat32, 1}, Case{DType::kFloat32, 2}, Case{DType::kFloat32, 3},
                                         Case{DType::kBFloat16, 2}, Case{DType::kFloat16, 3}),
                         [](const auto& tested) {
                           return std::string(name(tested.param.type)) + "_" + std::to_string(tested.param.parts);
                         });

TEST_P(SplitLayers, EmbeddingsAddUpToTheWhole) {
  const int64_t rows = 9, width = 21, entries = 23;
  const std::vector<int32_t> tokens{0, 22, 7, 7, 8, 15, 16, 7, 22};
  const auto table = random(entries * width), from = random_.floats(rows * width);
  std::vector<float> sum(static_cast<size_t>(rows * width)), got_table;
  std::vector<double> want(sum.size()), want_table(static_cast<size_t>(entries * width), 0.25);
  for (size_t i = 0; i < want.size(); ++i) {
    const auto entry = static_cast<size_t>(tokens[i / width] * width) + i % width;
    want[i] = table[entry];
    want_table[entry] += from[i];
  }
  for (int p = 0; p < parts(); ++p) {
    const Part part = part_of(entries, p, parts());
    const auto begin = table.begin() + part.begin * width;
    TypedArray own(type(), {begin, begin + part.count() * width});
    TypedArray gradient(type(), std::vector<float>(static_cast<size_t>(part.count() * width), 0.25f));
    const EmbeddingRows embedding{tokens.data(), rows, width, part.count(), part.begin};
    std::vector<float> to(sum.size(), NAN);
    split_embedding_forward(embedding, own.values(), to.data(), {0, 4});
    split_embedding_forward(embedding, own.values(), to.data(), {4, rows});
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += to[i];
    split_embedding_backward(embedding, from.data(), gradient.values(), 0, 16);
    split_embedding_backward(embedding, from.data(), gradient.values(), 16, width);
    const auto values = gradient.floats();
    got_table.insert(got_table.end(), values.begin(), values.end());
  }
  EXPECT_TRUE(all_close(sum, want, 0));
  EXPECT_TRUE(all_close(got_table, want_table, 3 * tolerance()));  // a row of three tokens is rounded three times
}

TEST(SplitLayersRows, AreSortedByToken) {
  const std::vector<int32_t> tokens{5, 2, 5, 0, 2, 5};
  std::vector<int32_t> sorted(6), rows(6);
  sort_rows_by_token(tokens, sorted, rows);
  EXPECT_EQ(sorted, (std::vector<int32_t>{0, 2, 2, 5, 5, 5}));
  EXPECT_EQ(rows, (std::vector<int32_t>{3, 1, 4, 0, 2, 5}));
}

struct PlainLoss {
  double sum = 0;
  std::vector<double> gradient;
};

PlainLoss plain_loss(const std::vector<float>& logits, const std::vector<int32_t>& targets, int64_t entries,
                     double factor) {
  PlainLoss plain;
  plain.gradient.resize(logits.size());
  for (size_t row = 0; row < targets.size(); ++row) {
    const size_t first = row * static_cast<size_t>(entries), end = first + static_cast<size_t>(entries);
    if (targets[row] == kIgnoredTarget) continue;
    double sum = 0;
    for (size_t i = first; i < end; ++i) sum += std::exp(static_cast<double>(logits[i]));
    const size_t target = first + static_cast<size_t>(targets[row]);
    plain.sum += std::log(sum) - logits[target];
    for (size_t i = first; i < end; ++i)
      plain.gradient[i] = factor * (std::exp(static_cast<double>(logits[i])) / sum - (i == target ? 1 : 0));
  }
  return plain;
}

TEST_P(SplitLayers, LossMatchesTheWhole) {
  const int64_t entries = 70;
  const std::vector<int32_t> targets{0, 69, kIgnoredTarget, 23, 24, 47, 46};
  const auto rows = std::ssize(targets);
  const auto logits = random(rows * entries, 6);
  const PlainLoss plain = plain_loss(logits, targets, entries, 0.5);
  std::vector<float> statistics(static_cast<size_t>(parts() * split_part_elements(rows)), NAN), maxima(targets.size()),
      log_sums(targets.size()), gradient(logits.size());
  std::vector<TypedArray> arrays;
  const auto tile = [&](int p) {
    const Part part = part_of(entries, p, parts());
    return LogitTile{arrays[static_cast<size_t>(p)].values(), part.count(), rows, part.count(), part.begin};
  };
  for (int p = 0; p < parts(); ++p) {
    arrays.emplace_back(type(), columns(logits, entries, part_of(entries, p, parts())));
    float* part = statistics.data() + p * split_part_elements(rows);
    split_loss_statistics(tile(p), targets.data(), part, {0, 2});
    split_loss_statistics(tile(p), targets.data(), part, {2, rows});
  }
  double sum = NAN;
  split_loss_forward({{parts(), statistics.data()}, rows, targets.data(), maxima.data(), log_sums.data(), &sum});
  EXPECT_NEAR(sum, plain.sum, 1e-6 * plain.sum);
  for (int p = 0; p < parts(); ++p) {
    split_loss_backward(tile(p), {maxima.data(), log_sums.data(), targets.data(), 0.5f}, {0, 3});
    split_loss_backward(tile(p), {maxima.data(), log_sums.data(), targets.data(), 0.5f}, {3, rows});
    put_columns(gradient, entries, part_of(entries, p, parts()), arrays[static_cast<size_t>(p)].floats());
  }
  EXPECT_TRUE(all_close(gradient, plain.gradient, tolerance()));
}

/// A rank whose part is empty, and logits of -infinity, as a mask gives them.
TEST(SplitLoss, AcceptsEmptyPartsAndMaskedLogits) {
  const float masked = -INFINITY;
  std::vector<float> logits{masked, 1.0f, masked, masked}, statistics(2 * split_part_elements(2)), maxima(2),
      log_sums(2);
  const std::vector<int32_t> targets{1, kIgnoredTarget};
  split_loss_statistics({logits.data(), 2, 2, 2, 0}, targets.data(), statistics.data());
  split_loss_statistics({logits.data(), 0, 2, 0, 2}, targets.data(), statistics.data() + split_part_elements(2));
  double sum = NAN;
  split_loss_forward({{2, statistics.data()}, 2, targets.data(), maxima.data(), log_sums.data(), &sum});
  EXPECT_EQ(sum, 0.0);
}

struct PlainNorm {
  std::vector<double> y, dx, d_weight, d_bias;
};

/// All arrays are of whole rows.
struct NormValues {
  std::vector<float> x, weight, bias, from;
  int64_t rows, width;
  bool subtracts_mean;
};

PlainNorm plain_norm(const NormValues& v) {
  const auto width = static_cast<size_t>(v.width);
  PlainNorm plain{std::vector<double>(v.x.size()), std::vector<double>(v.x.size()), std::vector<double>(width),
                  std::vector<double>(width)};
  for (size_t first = 0; first < v.x.size(); first += width) {
    double mean = 0, variance = 0, mean_gradient = 0, mean_with_normal = 0;
    for (size_t c = 0; c < width && v.subtracts_mean; ++c) mean += v.x[first + c] / static_cast<double>(width);
    for (size_t c = 0; c < width; ++c) variance += std::pow(v.x[first + c] - mean, 2) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    const auto normal = [&](size_t c) { return (v.x[first + c] - mean) * rstd; };
    const auto gradient = [&](size_t c) { return static_cast<double>(v.from[first + c]) * v.weight[c]; };
    for (size_t c = 0; c < width; ++c) {
      plain.y[first + c] = normal(c) * v.weight[c] + (v.subtracts_mean ? v.bias[c] : 0);
      if (v.subtracts_mean) mean_gradient += gradient(c) / static_cast<double>(width);
      mean_with_normal += gradient(c) * normal(c) / static_cast<double>(width);
      plain.d_weight[c] += v.from[first + c] * normal(c);
      plain.d_bias[c] += v.from[first + c];
    }
    for (size_t c = 0; c < width; ++c)
      plain.dx[first + c] = rstd * (gradient(c) - mean_gradient - normal(c) * mean_with_normal);
  }
  return plain;
}

/// The part of a norm that one rank computes.
struct NormPart {
  Part part;
  std::vector<float> x, from, mean, rstd, dx, d_weight, d_bias;
  TypedArray weight, bias, y;
  bool subtracts_mean;

  NormPart(const NormValues& v, DType type, const Part& of)
      : part(of),
        x(columns(v.x, v.width, of)),
        from(columns(v.from, v.width, of)),
        mean(static_cast<size_t>(v.rows)),
        rstd(mean),
        dx(x.size(), 0.25f),
        d_weight(static_cast<size_t>(of.count())),
        d_bias(d_weight),
        weight(type, columns(v.weight, v.width, of)),
        bias(type, columns(v.bias, v.width, of)),
        y(type, std::vector<float>(x.size())),
        subtracts_mean(v.subtracts_mean) {}

  int64_t rows() const { return std::ssize(rstd); }
  float* means() { return subtracts_mean ? mean.data() : nullptr; }
  LayerNormRows forward() {
    return {x.data(), weight.values(), subtracts_mean ? bias.values() : Values(), means(), rstd.data(), y.values(),
            rows(),   part.count()};
  }
  LayerNormBackwardRows backward() {
    return {x.data(), weight.values(), means(), rstd.data(), from.data(), dx.data(), rows(), part.count(), true};
  }
  void compute_weights() {
    split_norm_backward_weights({x.data(), means(), rstd.data(), from.data(), d_weight.data(),
                                 subtracts_mean ? Values(d_bias.data()) : Values(), rows(), part.count(), 0,
                                 part.count(), false});
  }
};

TEST_P(SplitLayers, NormsMatchTheWhole) {
  const int64_t rows = 5, width = 70;
  for (const bool subtracts_mean : {true, false}) {
    SCOPED_TRACE(subtracts_mean ? "layer norm" : "RMS norm");
    NormValues v{random_.floats(rows * width),
                 random(width),
                 random(width),
                 random_.floats(rows * width),
                 rows,
                 width,
                 subtracts_mean};
    for (float& x : v.x) x += 3;  // the mean is larger than the deviation
    const PlainNorm plain = plain_norm(v);
    std::vector<NormPart> ranks;
    std::vector<float> statistics(static_cast<size_t>(parts() * split_part_elements(rows)), NAN);
    const auto at = [&](int p) { return statistics.data() + p * split_part_elements(rows); };
    const SplitParts all{parts(), statistics.data()};
    for (int p = 0; p < parts(); ++p) ranks.emplace_back(v, type(), part_of(width, p, parts()));
    for (int p = 0; p < parts(); ++p) split_norm_statistics(ranks[static_cast<size_t>(p)].forward(), at(p), {0, 3});
    for (int p = 0; p < parts(); ++p) split_norm_statistics(ranks[static_cast<size_t>(p)].forward(), at(p), {3, rows});
    for (NormPart& rank : ranks) {
      split_norm_forward(rank.forward(), all, {0, 1});
      split_norm_forward(rank.forward(), all, {1, rows});
    }
    std::fill(statistics.begin(), statistics.end(), NAN);
    for (int p = 0; p < parts(); ++p) split_norm_backward_statistics(ranks[static_cast<size_t>(p)].backward(), at(p));
    std::vector<float> y(v.x.size()), dx(v.x.size()), d_weight(v.weight.size()), d_bias(v.weight.size());
    for (NormPart& rank : ranks) {
      split_norm_backward(rank.backward(), all, {0, 2});
      split_norm_backward(rank.backward(), all, {2, rows});
      rank.compute_weights();
      EXPECT_TRUE(same_bits(rank.rstd, ranks[0].rstd));
      put_columns(y, width, rank.part, rank.y.floats());
      put_columns(dx, width, rank.part, rank.dx);
      put_columns(d_weight, width, rank.part, rank.d_weight);
      put_columns(d_bias, width, rank.part, rank.d_bias);
    }
    for (float& value : dx) value -= 0.25f;  // the backward adds
    EXPECT_TRUE(all_close(y, plain.y, tolerance()));
    EXPECT_TRUE(all_close(dx, plain.dx, 1e-5));
    EXPECT_TRUE(all_close(d_weight, plain.d_weight, 1e-5));
    if (!subtracts_mean) continue;
    EXPECT_TRUE(all_close(d_bias, plain.d_bias, 1e-5));
  }
}

/// With one rank, the functions give the same bits as the loops for whole rows.
TEST(SplitNorm, OfOneRankHasTheBitsOfTheWhole) {
  const int64_t rows = 4, width = 37;
  RandomValues random(3);
  const auto x = random.floats(rows * width), weight = random.floats(width), bias = random.floats(width),
             from = random.floats(rows * width);
  for (const bool subtracts_mean : {true, false}) {
    std::vector<float> means(4), rstd(4), y(x.size()), dx(x.size()), whole_y(x.size()), whole_dx(x.size());
    std::vector<float> statistics(static_cast<size_t>(split_part_elements(rows)));
    float* mean = subtracts_mean ? means.data() : nullptr;
    const Values offset = subtracts_mean ? Values(const_cast<float*>(bias.data())) : Values();
    row_loops().layer_norm({x.data(), weight.data(), offset, mean, rstd.data(), whole_y.data(), rows, width});
    row_loops().layer_norm_backward(
        {x.data(), weight.data(), mean, rstd.data(), from.data(), whole_dx.data(), rows, width});
    const LayerNormRows norm{x.data(), weight.data(), offset, mean, rstd.data(), y.data(), rows, width};
    const LayerNormBackwardRows back{x.data(), weight.data(), mean, rstd.data(), from.data(), dx.data(), rows, width};
    split_norm_statistics(norm, statistics.data());
    split_norm_forward(norm, {1, statistics.data()});
    split_norm_backward_statistics(back, statistics.data());
    split_norm_backward(back, {1, statistics.data()});
    EXPECT_TRUE(same_bits(y, whole_y));
    EXPECT_TRUE(same_bits(dx, whole_dx));
  }
}

}  // namespace
}  // namespace aliquot::test
