#pragma once
// The sequence of operations of the head and its loss, tile by tile, for all backends.

#include <algorithm>
#include <cmath>

#include "apps/models/layers/loss.h"
#include "kernels/gemm/product.h"
#include "kernels/layers/row_loops.h"

namespace aliquot {

/// The logits of a tile in LossBuffers::logits.
inline LogitTile logit_tile(const LossShape& s, Values logits, int64_t tile) {
  const int64_t first = tile * s.tile;
  const int64_t columns = std::min(s.tile, s.entries - first);
  // The tiles of kept logits follow one another, or are columns of one matrix.
  const int64_t offset = !s.keep_logits ? 0 : s.row_multiple == 0 ? first : tile * s.rows * s.tile_stride(s.tile);
  return {logits.from(offset), s.tile_stride(columns), s.rows, columns, s.first_entry + first};
}

/// The index in the table of the tile's first element.
inline int64_t table_offset(const LossShape& s, const LogitTile& tile) {
  return (tile.first_entry - s.first_entry) * s.width;
}

/// The memory to which the product writes the logits of a tile.
inline LogitTile computed_logit_tile(const LossShape& s, const LossBuffers& buffers, int64_t tile) {
  LogitTile kept = logit_tile(s, buffers.logits, tile);
  if (buffers.tile == nullptr) return kept;
  return {buffers.tile, kept.columns, kept.rows, kept.columns, kept.first_entry};
}

inline Product logits_product(const LossShape& s, ConstValues hidden, ConstValues table, const LogitTile& tile,
                              float* scratch) {
  return {.a = {hidden, s.width},
          .b = {table.from(table_offset(s, tile)), s.width, true},
          .to = tile.logits,
          .to_stride = tile.stride,
          .rows = s.rows,
          .columns = tile.columns,
          .depth = s.width,
          .scratch = scratch};
}

/// The loss of a vocabulary whose parts have these statistics.
inline SplitLoss split_loss(const LossForward& a, const SplitParts& parts, double* sum) {
  return {parts, a.shape.rows, a.targets, a.buffers.maxima, a.buffers.log_sums, sum};
}

/// Returns the row maxima of a tile, or null if it is not computed in fp32 and then rounded.
inline float* tile_maxima(const LossShape& s, const LossBuffers& buffers, int64_t tile) {
  return buffers.tile_maxima == nullptr ? nullptr : buffers.tile_maxima + tile * s.rows;
}

/// Computes the statistics of the logits of each row tile by tile: `maxima`, and in `scratch` the sums and then the
/// logits of the targets. `loops` provides multiply(product), begin(running, target_logits, rows), accumulate(tile,
/// running, targets, target_logits), keep(to, computed, tile_maxima), backward(tile, loss rows, tile_maxima) and
/// finish(buffers, targets, target_logits, rows). They call keep() only for tiles in fp32 that are rounded.
template <class Loops>
void tiled_loss_statistics(const Loops& loops, const LossForward& a) {
  const LossShape& s = a.shape;
  const LossBuffers& buffers = a.buffers;
  RunningRowStatistics running{buffers.maxima, buffers.scratch};
  float* target_logits = buffers.scratch + s.rows;
  loops.begin(running, target_logits, s.rows);
  for (int64_t t = 0; t < s.tile_count(); ++t) {
    const LogitTile computed = computed_logit_tile(s, buffers, t);
    loops.multiply(logits_product(s, a.hidden, a.table, computed, buffers.product_scratch));
    running.tile_maxima = tile_maxima(s, buffers, t);
    loops.accumulate(computed, running, a.targets, target_logits);
    if (s.keep_logits && running.tile_maxima != nullptr) {
      loops.keep(logit_tile(s, buffers.logits, t), computed, running.tile_maxima);
    }
  }
}

template <class Loops>
void finish_loss(const Loops& loops, const LossForward& a) {
  loops.finish(a.buffers, a.targets, a.buffers.scratch + a.shape.rows, a.shape.rows);
}

/// Computes the statistics of a part of the vocabulary at `part`: see split_loss_statistics().
template <class Loops>
void tiled_loss_part(const Loops& loops, LossForward a, float* part) {
  a.buffers.maxima = part;
  a.buffers.scratch = part + a.shape.rows;
  tiled_loss_statistics(loops, a);
}

template <class Loops>
void tiled_loss_backward(const Loops& loops, const LossBackward& a) {
  const LossShape& s = a.shape;
  const LossBuffers& buffers = a.buffers;
  for (int64_t t = 0; t < s.tile_count(); ++t) {
    const LogitTile tile = logit_tile(s, buffers.logits, t);
    float* maxima = tile_maxima(s, buffers, t);
    if (!s.keep_logits) {
      const LogitTile computed = computed_logit_tile(s, buffers, t);
      loops.multiply(logits_product(s, a.hidden, a.table, computed, buffers.product_scratch));
      if (maxima != nullptr) loops.keep(tile, computed, maxima);
    }
    loops.backward(tile, {buffers.maxima, buffers.log_sums, a.targets, a.factor, a.factor_on_gpu}, maxima);
    loops.multiply({.a = {tile.logits, tile.stride},
                    .b = {a.table.from(table_offset(s, tile)), s.width},
                    .to = a.d_hidden,
                    .to_stride = s.width,
                    .rows = s.rows,
                    .columns = s.width,
                    .depth = tile.columns,
                    .add = t > 0,
                    .scratch = buffers.product_scratch});
    if (a.d_table.data == nullptr) continue;
    loops.multiply({.a = {tile.logits, tile.stride, true},
                    .b = {a.hidden, s.width},
                    .to = a.d_table.from(table_offset(s, tile)),
                    .to_stride = s.width,
                    .rows = tile.columns,
                    .columns = s.width,
                    .depth = s.rows,
                    .add = a.add_table,
                    .scratch = buffers.product_scratch});
  }
}

}  // namespace aliquot
