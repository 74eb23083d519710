// The functions of split_layers.h that compute on the host.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/layers/row_loops.h"
#include "kernels/layers/row_statistics.h"
#include "kernels/layers/split_layers.h"
#include "kernels/layers/sum_divisions.h"

namespace aliquot {
namespace {

RowRange within(RowRange range, int64_t rows) { return {range.begin, range.end < 0 ? rows : range.end}; }

LogitTile rows_of(LogitTile tile, const RowRange& range) {
  tile.logits = tile.logits.from(range.begin * tile.stride);
  tile.rows = range.end - range.begin;
  return tile;
}

/// The logit of a target, or 0 if another rank has it.
float target_logit(const LogitTile& tile, int64_t row, int32_t target) {
  const int64_t column = target - tile.first_entry;
  if (column < 0 || column >= tile.columns) return 0.0f;
  float value = 0.0f;
  row_loops().convert(&value, tile.logits.from(row * tile.stride + column), 1);
  return value;
}

}  // namespace

void split_embedding_forward(const EmbeddingRows& e, ConstValues table, float* to, RowRange rows) {
  const RowRange range = within(rows, e.rows);
  for (int64_t row = range.begin; row < range.end; ++row) {
    const int64_t entry = e.tokens[row] - e.first_entry;
    if (0 <= entry && entry < e.entries) {
      row_loops().convert(to + row * e.width, table.from(entry * e.width), e.width);
      for (int64_t c = 0; c < e.width; ++c) to[row * e.width + c] += 0.0f;  // -0 becomes 0, as in a sum over ranks
    } else {
      std::fill_n(to + row * e.width, e.width, 0.0f);
    }
  }
}

void split_embedding_backward(const EmbeddingRows& e, const float* from, Values table_gradient, int64_t begin,
                              int64_t end) {
  for (int64_t row = 0; row < e.rows; ++row) {
    const int64_t entry = e.tokens[row] - e.first_entry;
    if (entry < 0 || entry >= e.entries) continue;
    row_loops().add(table_gradient.from(entry * e.width + begin), from + row * e.width + begin, end - begin);
  }
}

int64_t split_embedding_scratch_elements(int64_t rows, int64_t width) {
  return embedding_scratch_elements(rows, width);
}

void sort_rows_by_token(std::span<const int32_t> tokens, std::span<int32_t> sorted_tokens, std::span<int32_t> rows) {
  std::iota(rows.begin(), rows.end(), 0);
  std::ranges::stable_sort(rows, {}, [&](int32_t row) { return tokens[static_cast<size_t>(row)]; });
  std::ranges::transform(rows, sorted_tokens.begin(), [&](int32_t row) { return tokens[static_cast<size_t>(row)]; });
}

void split_loss_statistics(const LogitTile& logits, const int32_t* targets, float* part, RowRange rows) {
  const RowRange range = within(rows, logits.rows);
  float *maxima = part, *sums = part + logits.rows, *target_logits = part + 2 * logits.rows;
  for (int64_t row = range.begin; row < range.end; ++row) {
    maxima[row] = -std::numeric_limits<float>::infinity();
    sums[row] = 0.0f;
    target_logits[row] = target_logit(logits, row, targets[row]);
  }
  if (logits.columns == 0) return;
  row_loops().accumulate_logits(rows_of(logits, range), {maxima + range.begin, sums + range.begin});
}

void split_loss_forward(const SplitLoss& loss) {
  *loss.sum = 0;
  for (int64_t row = 0; row < loss.rows; ++row) {
    const RowStatistics combined = combined_row(loss.parts, loss.rows, row);
    loss.maxima[row] = combined.maximum;
    *loss.sum += row_loss(combined, loss.targets[row], loss.log_sums + row);
  }
}

void split_loss_backward(const LogitTile& logits, const LossRows& loss, RowRange rows) {
  const RowRange range = within(rows, logits.rows);
  row_loops().loss_backward(rows_of(logits, range), {loss.maxima + range.begin, loss.log_sums + range.begin,
                                                     loss.targets + range.begin, loss.factor});
}

void split_norm_statistics(const LayerNormRows& norm, float* part, RowRange rows) {
  row_loops().split_norm_statistics(norm, part, within(rows, norm.rows));
}

void split_norm_forward(const LayerNormRows& norm, const SplitParts& parts, RowRange rows) {
  row_loops().split_norm_forward(norm, parts, within(rows, norm.rows));
}

void split_norm_backward_statistics(const LayerNormBackwardRows& norm, float* part, RowRange rows) {
  row_loops().split_norm_backward_statistics(norm, part, within(rows, norm.rows));
}

void split_norm_backward(const LayerNormBackwardRows& norm, const SplitParts& parts, RowRange rows) {
  row_loops().split_norm_backward(norm, parts, within(rows, norm.rows));
}

int64_t split_norm_scratch_elements(int64_t rows, int64_t width) {
  return column_sums_scratch_elements(rows, 2 * width);  // weight and bias
}

void split_norm_backward_weights(const LayerNormWeightColumns& norm) { row_loops().layer_norm_weights(norm); }

}  // namespace aliquot
