// Compares layers that ranks divide on a GPU with those on the host.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/layers/split_layers.h"
#include "tests/support/arrays_on_gpu.h"

namespace aliquot::test {
namespace {

class SplitLayersOnGpu : public ArraysOnGpu {
 protected:
  Array integers(const std::vector<int32_t>& values) {
    std::vector<float> same_bits(values.size());
    std::memcpy(same_bits.data(), values.data(), values.size() * sizeof(int32_t));
    return {*device_, *stream_, same_bits};
  }

  /// Returns counts[token] times each token, in a random order.
  std::vector<int32_t> shuffled_tokens(const std::vector<int64_t>& counts) {
    std::vector<int32_t> tokens;
    for (size_t token = 0; token < counts.size(); ++token)
      tokens.insert(tokens.end(), static_cast<size_t>(counts[token]), static_cast<int32_t>(token));
    for (size_t i = tokens.size(); i > 1; --i) std::swap(tokens[i - 1], tokens[random_.bits() % i]);
    return tokens;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, SplitLayersOnGpu, kComputeTypes, type_name);

TEST_P(SplitLayersOnGpu, Embedding) {
  const std::vector<int32_t> tokens{3, 9, 7, 7, 4, 12, 3, 7};
  const EmbeddingRows shape{nullptr, std::ssize(tokens), 21, 6, 4};
  std::vector<int32_t> sorted_tokens(tokens.size()), sorted_rows(tokens.size());
  sort_rows_by_token(tokens, sorted_tokens, sorted_rows);
  Array ids = integers(tokens), by_token = integers(sorted_tokens), rows = integers(sorted_rows);
  Array table = random(shape.entries * shape.width, type()), to = random(shape.rows * shape.width);
  Array from = random(shape.rows * shape.width), gradient = random(shape.entries * shape.width, type());
  EmbeddingRows host = shape, gpu = shape;
  host.tokens = ids.host_as<int32_t>();
  gpu.tokens = ids.gpu_as<int32_t>();
  split_embedding_forward(host, table.host(), to.host_as<float>());
  split_embedding_forward(*stream_, gpu, table.gpu(), to.gpu_as<float>());
  split_embedding_backward(host, from.host_as<float>(), gradient.host(), 0, shape.width);
  split_embedding_backward(*stream_, gpu, {by_token.gpu_as<int32_t>(), rows.gpu_as<int32_t>()}, from.gpu_as<float>(),
                           gradient.gpu());
  EXPECT_TRUE(to.alike(0));
  EXPECT_TRUE(gradient.alike(3 * rounding_tolerance(type())));  // the host rounds after each row
}

/// Tokens that occur more often than a segment has rows are added in segments. Neither scratch memory nor the division
/// of the table changes a bit.
TEST_P(SplitLayersOnGpu, EmbeddingOfFrequentTokens) {
  struct Case {
    std::vector<int64_t> counts;  // of each token
    int64_t width, offset = 0;
  };
  for (const Case& c :
       {Case{{64, 65, 1, 0, 128, 300, 63, 2}, 21}, Case{{1, 700, 0, 129, 1}, 24}, Case{{1, 700, 0, 129, 1}, 24, 1},
        Case{{0, 1100, 0}, 8}, Case{{80, 1, 70, 1, 66, 1}, 300}, Case{{30, 10}, 8}}) {
    SCOPED_TRACE(testing::Message() << c.counts.size() << " tokens, width " << c.width << ", offset " << c.offset);
    const std::vector<int32_t> tokens = shuffled_tokens(c.counts);
    const EmbeddingRows shape{nullptr, std::ssize(tokens), c.width, std::ssize(c.counts)};
    std::vector<int32_t> sorted_tokens(tokens.size()), sorted_rows(tokens.size());
    sort_rows_by_token(tokens, sorted_tokens, sorted_rows);
    Array ids = integers(tokens), by_token = integers(sorted_tokens), rows = integers(sorted_rows);
    Array from = random(shape.rows * c.width + c.offset);
    const std::vector<float> initial = random_.floats(shape.entries * c.width);
    // The host rounds 16-bit sums after each row, so the expected sums are fp32.
    Array start{*device_, *stream_, initial, type()}, expected = zeros(shape.entries * c.width);
    const auto values = start.on_host();
    std::copy(values.begin(), values.end(), expected.host_as<float>());
    EmbeddingRows host = shape;
    host.tokens = ids.host_as<int32_t>();
    split_embedding_backward(host, from.host_as<float>() + c.offset, expected.host(), 0, c.width);

    const int64_t required = split_embedding_scratch_elements(shape.rows, c.width);
    const auto backward = [&](int64_t first_entry, int64_t entries, int64_t scratch_elements) {
      Array table{*device_, *stream_, initial, type()}, scratch = random(scratch_elements + 64);
      const auto scratch_before = scratch.on_gpu();
      const EmbeddingRows part{
          nullptr, shape.rows,  c.width,
          entries, first_entry, {scratch_elements == 0 ? nullptr : scratch.gpu_as<float>(), scratch_elements}};
      split_embedding_backward(*stream_, part, {by_token.gpu_as<int32_t>(), rows.gpu_as<int32_t>()},
                               from.gpu_as<float>() + c.offset, table.gpu().from(first_entry * c.width));
      const auto scratch_after = scratch.on_gpu();
      EXPECT_TRUE(std::equal(scratch_after.begin() + scratch_elements, scratch_after.end(),
                             scratch_before.begin() + scratch_elements));
      if (entries == shape.entries) {  // with a token that has several segments, unless no scratch is required
        EXPECT_EQ(scratch_after != scratch_before, required > 0 && scratch_elements >= required);
      }
      return table.on_gpu();
    };
    const auto sums = backward(0, shape.entries, required);
    EXPECT_TRUE(all_close(sums, expected.on_host(), std::max(1e-5, rounding_tolerance(type()))));
    EXPECT_EQ(backward(0, shape.entries, 0), sums);
    if (required > 0) {
      EXPECT_EQ(backward(0, shape.entries, required - 1), sums);
    }
    for (const int64_t ranks : {2, 3}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t begin = shape.entries * rank / ranks, end = shape.entries * (rank + 1) / ranks;
        auto only_own = start.on_gpu();
        std::copy(sums.begin() + begin * c.width, sums.begin() + end * c.width, only_own.begin() + begin * c.width);
        EXPECT_EQ(backward(begin, end - begin, required), only_own) << "rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST_P(SplitLayersOnGpu, Loss) {
  const int64_t rows = 7, entries = 45, first = 28;
  Array targets = integers({0, 44, kIgnoredTarget, 27, 28, 40, 3}), statistics = zeros(2 * split_part_elements(rows));
  Array maxima = zeros(rows), log_sums = zeros(rows), sum = zeros(2);
  Array left = random(rows * first, type(), 5), right = random(rows * (entries - first), type(), 5);
  const LogitTile a{{}, first, rows, first, 0}, b{{}, entries - first, rows, entries - first, first};
  const auto with = [](LogitTile tile, Values logits) {
    tile.logits = logits;
    return tile;
  };
  const auto *on_host = targets.host_as<int32_t>(), *on_gpu = targets.gpu_as<int32_t>();
  const int64_t second = split_part_elements(rows);
  split_loss_statistics(with(a, left.host()), on_host, statistics.host_as<float>());
  split_loss_statistics(with(b, right.host()), on_host, statistics.host_as<float>() + second);
  split_loss_statistics(*stream_, with(a, left.gpu()), on_gpu, statistics.gpu_as<float>());
  split_loss_statistics(*stream_, with(b, right.gpu()), on_gpu, statistics.gpu_as<float>() + second);
  EXPECT_TRUE(statistics.alike(1e-5));
  split_loss_forward({{2, statistics.host_as<float>()},
                      rows,
                      on_host,
                      maxima.host_as<float>(),
                      log_sums.host_as<float>(),
                      sum.host_as<double>()});
  split_loss_forward(*stream_, {{2, statistics.gpu_as<float>()},
                                rows,
                                on_gpu,
                                maxima.gpu_as<float>(),
                                log_sums.gpu_as<float>(),
                                sum.gpu_as<double>()});
  double got = NAN;
  device_->kernels().copy(*stream_, &got, sum.gpu_as<double>(), sizeof(got));
  stream_->synchronize();
  EXPECT_NEAR(got, *sum.host_as<double>(), 1e-5 * got);
  EXPECT_GT(got, 1);
  for (const auto& [tile, logits] : {std::pair{a, &left}, std::pair{b, &right}}) {
    split_loss_backward(with(tile, logits->host()),
                        {maxima.host_as<float>(), log_sums.host_as<float>(), on_host, 0.5f});
    split_loss_backward(*stream_, with(tile, logits->gpu()),
                        {maxima.gpu_as<float>(), log_sums.gpu_as<float>(), on_gpu, 0.5f});
    EXPECT_TRUE(logits->alike(2 * rounding_tolerance(type())));
  }
}

TEST_P(SplitLayersOnGpu, Norm) {
  const int64_t rows = 6;
  for (const bool subtracts_mean : {true, false}) {
    SCOPED_TRACE(subtracts_mean ? "layer norm" : "RMS norm");
    Array statistics = zeros(2 * split_part_elements(rows)), mean = zeros(rows), rstd = zeros(rows);
    for (const bool backward : {false, true}) {
      for (int pass = 0; pass < 2; ++pass) {
        int64_t part = 0;
        for (const int64_t width : {int64_t{40}, int64_t{33}}) {
          random_ = RandomValues(static_cast<uint64_t>(width));
          Array x = random(rows * width, DType::kFloat32, 2), weight = random(width, type()),
                bias = random(width, type());
          Array from = random(rows * width), to = zeros(rows * width, type()), dx = random(rows * width);
          Array d_weight = random(width, type()), d_bias = random(width, type());
          const auto run = [&](auto at, auto values, auto... stream) {
            float* means = subtracts_mean ? at(mean) : nullptr;
            const LayerNormRows norm{at(x), values(weight), subtracts_mean ? values(bias) : Values(),
                                     means, at(rstd),       values(to),
                                     rows,  width};
            const LayerNormBackwardRows back{at(x),  values(weight), means, at(rstd), at(from),
                                             at(dx), rows,           width, true};
            const SplitParts parts{2, at(statistics)};
            float* own = at(statistics) + part * split_part_elements(rows);
            if (!backward && pass == 0) split_norm_statistics(stream..., norm, own);
            if (!backward && pass == 1) split_norm_forward(stream..., norm, parts);
            if (backward && pass == 0) split_norm_backward_statistics(stream..., back, own);
            if (!backward || pass == 0) return;
            split_norm_backward(stream..., back, parts);
            split_norm_backward_weights(stream...,
                                        {at(x), means, at(rstd), at(from), values(d_weight),
                                         subtracts_mean ? values(d_bias) : Values(), rows, width, 0, width, true});
          };
          run([](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
          run([](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); }, std::ref(*stream_));
          ++part;
          EXPECT_TRUE(to.alike(2 * rounding_tolerance(type())));
          EXPECT_TRUE(dx.alike(1e-5));
          EXPECT_TRUE(d_weight.alike(2 * rounding_tolerance(type())));
          EXPECT_TRUE(d_bias.alike(2 * rounding_tolerance(type())));
        }
        EXPECT_TRUE(statistics.alike(1e-5));
      }
    }
    EXPECT_TRUE(rstd.alike(1e-5));
  }
}

}  // namespace
}  // namespace aliquot::test
