#include "apps/models/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/models/parallel.h"
#include "apps/models/product.h"
#include "apps/models/row_loops.h"

namespace aliquot {
namespace {

int64_t tile_count(const LossShape& s) { return (s.entries + kLossTileEntries - 1) / kLossTileEntries; }

LogitTile tile_at(const LossShape& s, float* logits, int64_t tile) {
  const int64_t first = tile * kLossTileEntries;
  const int64_t columns = std::min(kLossTileEntries, s.entries - first);
  if (s.keep_logits) return {logits + first, s.entries, s.rows, columns, first};
  return {logits, columns, s.rows, columns, first};
}

void compute_tile(ThreadPool& pool, const LossShape& s, const float* hidden, const float* table,
                  const LogitTile& tile) {
  multiply(pool, {.a = {hidden, s.width},
                  .b = {table + tile.first_entry * s.width, s.width, true},
                  .to = tile.logits,
                  .to_stride = tile.stride,
                  .rows = s.rows,
                  .columns = tile.columns,
                  .depth = s.width});
}

// Rows [begin, end) of the tile.
LogitTile rows_of(LogitTile tile, int64_t begin, int64_t end) {
  tile.logits += begin * tile.stride;
  tile.rows = end - begin;
  return tile;
}

struct RowSums {
  float *maxima, *sums, *target_logits;
};

void take_tile(ThreadPool& pool, const LogitTile& tile, const int32_t* targets, const RowSums& rows) {
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) {
    const int64_t begin = tile.rows * part / part_count, end = tile.rows * (part + 1) / part_count;
    row_loops().take_logits(rows_of(tile, begin, end), rows.maxima + begin, rows.sums + begin);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t column = targets[row] - tile.first_entry;
      if (0 <= column && column < tile.columns) rows.target_logits[row] = tile.logits[row * tile.stride + column];
    }
  });
}

}  // namespace

double loss_forward(ThreadPool& pool, const LossShape& s, const float* hidden, const float* table,
                    const int32_t* targets, const LossBuffers& buffers) {
  const RowSums rows{buffers.maxima, buffers.scratch, buffers.scratch + s.rows};
  std::fill_n(rows.maxima, s.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(rows.sums, s.rows, 0.0f);
  for (int64_t t = 0; t < tile_count(s); ++t) {
    const LogitTile tile = tile_at(s, buffers.logits, t);
    compute_tile(pool, s, hidden, table, tile);
    take_tile(pool, tile, targets, rows);
  }
  double loss = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    const double log_sum = std::log(static_cast<double>(rows.sums[row]));
    buffers.log_sums[row] = static_cast<float>(log_sum);
    loss += log_sum + (static_cast<double>(rows.maxima[row]) - static_cast<double>(rows.target_logits[row]));
  }
  return loss;
}

void loss_backward(ThreadPool& pool, const LossBackward& a) {
  const LossShape& s = a.shape;
  const int64_t part_count = pool.thread_count();
  for (int64_t t = 0; t < tile_count(s); ++t) {
    const LogitTile tile = tile_at(s, a.buffers.logits, t);
    if (!s.keep_logits) compute_tile(pool, s, a.hidden, a.table, tile);
    for_parts(pool, [&](int64_t part) {
      const int64_t begin = tile.rows * part / part_count, end = tile.rows * (part + 1) / part_count;
      row_loops().loss_backward(rows_of(tile, begin, end),
                                {a.buffers.maxima + begin, a.buffers.log_sums + begin, a.targets + begin, a.factor});
    });
    const float* table = a.table + tile.first_entry * s.width;
    multiply(pool, {.a = {tile.logits, tile.stride},
                    .b = {table, s.width},
                    .to = a.d_hidden,
                    .to_stride = s.width,
                    .rows = s.rows,
                    .columns = s.width,
                    .depth = tile.columns,
                    .add = t > 0});
    multiply(pool, {.a = {tile.logits, tile.stride, true},
                    .b = {a.hidden, s.width},
                    .to = a.d_table + tile.first_entry * s.width,
                    .to_stride = s.width,
                    .rows = tile.columns,
                    .columns = s.width,
                    .depth = s.rows,
                    .add = a.add_table});
  }
}

}  // namespace aliquot
