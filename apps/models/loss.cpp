#include "apps/models/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/models/parallel.h"
#include "apps/models/parts.h"
#include "apps/models/product.h"
#include "apps/models/row_loops.h"

namespace aliquot {
namespace {

// Where a tile's logits are kept.
LogitTile tile_at(const LossShape& s, Values logits, int64_t tile) {
  const int64_t first = tile * kLossTileEntries;
  const int64_t columns = std::min(kLossTileEntries, s.entries - first);
  if (s.keep_logits) return {logits.from(first), s.entries, s.rows, columns, first};
  return {logits, columns, s.rows, columns, first};
}

// Where they are made: in fp32.
LogitTile tile_made_at(const LossShape& s, const LossBuffers& buffers, int64_t tile) {
  LogitTile kept = tile_at(s, buffers.logits, tile);
  if (buffers.logits.type == DType::kFloat32) return kept;
  return {buffers.tile, kept.columns, kept.rows, kept.columns, kept.first_entry};
}

void compute_tile(ThreadPool& pool, const LossShape& s, ConstValues hidden, ConstValues table, const LogitTile& tile,
                  float* scratch) {
  multiply(pool, {.a = {hidden, s.width},
                  .b = {table.from(tile.first_entry * s.width), s.width, true},
                  .to = tile.logits,
                  .to_stride = tile.stride,
                  .rows = s.rows,
                  .columns = tile.columns,
                  .depth = s.width,
                  .scratch = scratch});
}

// Rows [begin, end) of the tile.
LogitTile rows_of(LogitTile tile, int64_t begin, int64_t end) {
  tile.logits = tile.logits.from(begin * tile.stride);
  tile.rows = end - begin;
  return tile;
}

// Calls body(begin, end) for ranges of rows.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, Body&& body) {
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) { body(rows * part / part_count, rows * (part + 1) / part_count); });
}

void take_tile(ThreadPool& pool, const LogitTile& tile, const int32_t* targets, const RunningRows& rows,
               float* target_logits) {
  for_rows(pool, tile.rows, [&](int64_t begin, int64_t end) {
    row_loops().take_logits(
        rows_of(tile, begin, end),
        {rows.maxima + begin, rows.sums + begin, rows.tile_maxima == nullptr ? nullptr : rows.tile_maxima + begin});
    for (int64_t row = begin; row < end; ++row) {
      const int64_t column = targets[row] - tile.first_entry;
      if (0 <= column && column < tile.columns) target_logits[row] = tile.logits.fp32()[row * tile.stride + column];
    }
  });
}

// A tile made in fp32 is kept in 16 bits.
void keep_tile(ThreadPool& pool, const LossShape& s, const LossBuffers& buffers, int64_t tile) {
  if (buffers.tile_maxima == nullptr) return;
  const LogitTile made = tile_made_at(s, buffers, tile), kept = tile_at(s, buffers.logits, tile);
  const float* maxima = buffers.tile_maxima + tile * s.rows;
  for_rows(pool, s.rows, [&](int64_t begin, int64_t end) {
    row_loops().keep_logits(rows_of(kept, begin, end), made.logits.fp32() + begin * made.stride, made.stride,
                            maxima + begin);
  });
}

void tile_backward(ThreadPool& pool, const LossBackward& a, const LogitTile& tile, int64_t t) {
  const LossBuffers& buffers = a.buffers;
  for_rows(pool, tile.rows, [&](int64_t begin, int64_t end) {
    float* maxima = buffers.scratch;  // less what was taken off when the tile was kept
    for (int64_t row = begin; row < end; ++row) {
      maxima[row] =
          buffers.maxima[row] - (buffers.tile_maxima == nullptr ? 0 : buffers.tile_maxima[t * tile.rows + row]);
    }
    row_loops().loss_backward(rows_of(tile, begin, end),
                              {maxima + begin, buffers.log_sums + begin, a.targets + begin, a.factor});
  });
}

}  // namespace

double loss_forward(ThreadPool& pool, const LossShape& s, ConstValues hidden, ConstValues table, const int32_t* targets,
                    const LossBuffers& buffers) {
  const TimedPart timed(Part::kLoss);
  RunningRows rows{buffers.maxima, buffers.scratch};
  float* target_logits = buffers.scratch + s.rows;
  std::fill_n(rows.maxima, s.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(rows.sums, s.rows, 0.0f);
  for (int64_t t = 0; t < s.tile_count(); ++t) {
    const LogitTile tile = tile_made_at(s, buffers, t);
    compute_tile(pool, s, hidden, table, tile, buffers.product_scratch);
    if (buffers.tile_maxima != nullptr) rows.tile_maxima = buffers.tile_maxima + t * s.rows;
    take_tile(pool, tile, targets, rows, target_logits);
    if (s.keep_logits) keep_tile(pool, s, buffers, t);
  }
  double loss = 0;
  for (int64_t row = 0; row < s.rows; ++row) {
    const double log_sum = std::log(static_cast<double>(rows.sums[row]));
    buffers.log_sums[row] = static_cast<float>(log_sum);
    loss += log_sum + (static_cast<double>(rows.maxima[row]) - static_cast<double>(target_logits[row]));
  }
  return loss;
}

void loss_backward(ThreadPool& pool, const LossBackward& a) {
  const TimedPart timed(Part::kLoss);
  const LossShape& s = a.shape;
  for (int64_t t = 0; t < s.tile_count(); ++t) {
    const LogitTile tile = tile_at(s, a.buffers.logits, t);
    if (!s.keep_logits) {
      compute_tile(pool, s, a.hidden, a.table, tile_made_at(s, a.buffers, t), a.buffers.product_scratch);
      keep_tile(pool, s, a.buffers, t);
    }
    tile_backward(pool, a, tile, t);
    multiply(pool, {.a = {tile.logits, tile.stride},
                    .b = {a.table.from(tile.first_entry * s.width), s.width},
                    .to = a.d_hidden,
                    .to_stride = s.width,
                    .rows = s.rows,
                    .columns = s.width,
                    .depth = tile.columns,
                    .add = t > 0,
                    .scratch = a.buffers.product_scratch});
    multiply(pool, {.a = {tile.logits, tile.stride, true},
                    .b = {a.hidden, s.width},
                    .to = a.d_table.from(tile.first_entry * s.width),
                    .to_stride = s.width,
                    .rows = tile.columns,
                    .columns = s.width,
                    .depth = s.rows,
                    .add = a.add_table,
                    .scratch = a.buffers.product_scratch});
  }
}

}  // namespace aliquot
