#include "apps/models/layers/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/models/layers/loss_tiles.h"
#include "apps/models/layers/work_time.h"
#include "kernels/gemm/product.h"
#include "kernels/layers/row_loops.h"
#include "kernels/layers/row_statistics.h"
#include "kernels/system/parallel.h"

namespace aliquot {
namespace {

// Rows [begin, end) of the tile.
LogitTile rows_of(LogitTile tile, int64_t begin, int64_t end) {
  tile.logits = tile.logits.from(begin * tile.stride);
  tile.rows = end - begin;
  return tile;
}

// Calls body(begin, end) in parallel for ranges of rows.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, Body&& body) {
  const int64_t part_count = pool.thread_count();
  for_parts(pool, [&](int64_t part) { body(rows * part / part_count, rows * (part + 1) / part_count); });
}

struct HostLogitLoops {
  ThreadPool& pool;
  float* scratch;  // used by backward: one element for each row
  double* loss;

  void multiply(const Product& product) const { aliquot::multiply(pool, product); }

  void begin(const RunningRowStatistics& running, float* target_logits, int64_t rows) const {
    std::fill_n(running.maxima, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(running.sums, rows, 0.0f);
    std::fill_n(target_logits, rows, 0.0f);
  }

  void accumulate(const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                  float* target_logits) const {
    for_rows(pool, tile.rows, [&](int64_t begin, int64_t end) {
      row_loops().accumulate_logits(
          rows_of(tile, begin, end),
          {rows.maxima + begin, rows.sums + begin, rows.tile_maxima == nullptr ? nullptr : rows.tile_maxima + begin});
      for (int64_t row = begin; row < end; ++row) {
        const int64_t column = targets[row] - tile.first_entry;
        if (0 <= column && column < tile.columns) target_logits[row] = tile.logits.fp32()[row * tile.stride + column];
      }
    });
  }

  void keep(const LogitTile& to, const LogitTile& computed, const float* tile_maxima) const {
    for_rows(pool, to.rows, [&](int64_t begin, int64_t end) {
      row_loops().keep_logits(rows_of(to, begin, end), computed.logits.fp32() + begin * computed.stride,
                              computed.stride, tile_maxima + begin);
    });
  }

  void backward(const LogitTile& tile, const LossRows& rows, const float* tile_maxima) const {
    for_rows(pool, tile.rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        scratch[row] = rows.maxima[row] - (tile_maxima == nullptr ? 0 : tile_maxima[row]);
      }
      row_loops().loss_backward(rows_of(tile, begin, end),
                                {scratch + begin, rows.log_sums + begin, rows.targets + begin, rows.factor});
    });
  }

  void finish(const LossBuffers& buffers, const int32_t* targets, const float* target_logits, int64_t rows) const {
    for (int64_t row = 0; row < rows; ++row) {
      const RowStatistics statistics{buffers.maxima[row], buffers.scratch[row], target_logits[row]};
      *loss += row_loss(statistics, targets[row], buffers.log_sums + row);
    }
  }
};

}  // namespace

double loss_forward(ThreadPool& pool, const LossForward& a) {
  const ScopedWorkTimer timed(WorkKind::kLoss);
  double loss = 0;
  const HostLogitLoops loops{pool, nullptr, &loss};
  tiled_loss_statistics(loops, a);
  finish_loss(loops, a);
  return loss;
}

void loss_statistics(ThreadPool& pool, const LossForward& a, float* part) {
  const ScopedWorkTimer timed(WorkKind::kLoss);
  tiled_loss_part(HostLogitLoops{pool, nullptr, nullptr}, a, part);
}

double loss_of_parts(const LossForward& a, const SplitParts& parts) {
  const ScopedWorkTimer timed(WorkKind::kLoss);
  double loss = 0;
  split_loss_forward(split_loss(a, parts, &loss));
  return loss;
}

void loss_backward(ThreadPool& pool, const LossBackward& a) {
  const ScopedWorkTimer timed(WorkKind::kLoss);
  tiled_loss_backward(HostLogitLoops{pool, a.buffers.scratch, nullptr}, a);
}

}  // namespace aliquot
