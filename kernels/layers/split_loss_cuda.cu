// The CUDA kernels that compute a loss and its gradient from a tile of logits.
#include <cmath>

#include "kernels/device/row_loops_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/layers_cuda.h"
#include "kernels/layers/row_losses_cuda.h"

namespace aliquot {
namespace cuda {
namespace {

__global__ void initialize_rows(const RunningRowStatistics rows, float* target_logits, int64_t count) {
  for (int64_t row = launch_thread(); row < count; row += launch_stride()) {
    rows.maxima[row] = -INFINITY;
    rows.sums[row] = 0.0f;
    target_logits[row] = 0.0f;
  }
}

/// The maximum of some logits of a row, and the sum of exp(logit - maximum).
struct MaximumAndSum {
  float maximum = -INFINITY, sum = 0.0f;

  /// The sum relative to `most`, which is not below the maximum.
  __device__ float sum_relative_to(float most) const { return sum == 0.0f ? 0.0f : sum * expf(maximum - most); }
  template <int kCount>
  __device__ void add(const Pack<float, kCount>& logits) {
    float most = maximum;
    for (const float x : logits.lane) most = fmaxf(most, x);
    if (most > maximum) {
      sum = sum_relative_to(most);
      maximum = most;
    }
    for (const float x : logits.lane) sum += x == -INFINITY ? 0.0f : expf(x - maximum);
  }
};

/// The number of logits that a thread loads at a time: 16 bytes.
template <class E>
constexpr int kLogitPack = 16 / sizeof(typename E::Storage);

/// Loads a pack of a row from `column` on, with -infinity for the elements after the last column.
template <class E>
__device__ Pack<float, kLogitPack<E>> load_logits(const typename E::Storage* x, int64_t column, int64_t columns,
                                                  bool aligned) {
  if (aligned && column + kLogitPack<E> <= columns) return load_floats<E, kLogitPack<E>>(x + column);
  Pack<float, kLogitPack<E>> logits;
  for (int k = 0; k < kLogitPack<E>; ++k) logits.lane[k] = column + k < columns ? E::load(x[column + k]) : -INFINITY;
  return logits;
}

/// Each warp reads its rows once. Which lane adds a logit, and when, depends only on its column, so that kept and
/// recomputed logits give the same bits.
template <class E>
__global__ void accumulate_rows(const LogitTile tile, const RunningRowStatistics rows, const int32_t* targets,
                                float* target_logits) {
  constexpr int kPack = kLogitPack<E>;
  for (int64_t row = launch_warp(); row < tile.rows; row += launch_warp_stride()) {
    const auto* x = static_cast<const typename E::Storage*>(tile.logits.data) + row * tile.stride;
    const bool aligned = elements_before_row_packs<kPack>(x) == 0;
    MaximumAndSum lane;
    for (int64_t column = kPack * warp_lane(); column < tile.columns; column += kPack * kLanesPerWarp)
      lane.add(load_logits<E>(x, column, tile.columns, aligned));
    const float tile_most = max_of_lanes(lane.maximum), sum = sum_of_lanes(lane.sum_relative_to(tile_most));
    if (warp_lane() != 0) continue;
    const MaximumAndSum before{rows.maxima[row], rows.sums[row]}, of_tile{tile_most, sum};
    const float most = fmaxf(before.maximum, tile_most);
    rows.sums[row] = before.sum_relative_to(most) + of_tile.sum_relative_to(most);
    rows.maxima[row] = most;
    const int64_t column = targets[row] - tile.first_entry;
    if (0 <= column && column < tile.columns) target_logits[row] = E::load(x[column]);
  }
}

template <class E>
__global__ void differentiate_rows(const LogitTile tile, const LossRows rows, unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  const int64_t row = place.row;
  if (row >= tile.rows) return;
  auto* x = static_cast<typename E::Storage*>(tile.logits.data) + row * tile.stride;
  const float most = rows.maxima[row];
  const float of_target = rows.factor_on_gpu != nullptr ? *rows.factor_on_gpu : rows.factor;
  const float log_sum = rows.log_sums[row], factor = rows.targets[row] < 0 ? 0.0f : of_target;
  const int64_t target = rows.targets[row] - tile.first_entry;
  for_row<kLogitPack<E>>(tile.columns, elements_before_row_packs<kLogitPack<E>>(x), place, [&]<int kCount>(int column) {
    auto values = load_floats<E, kCount>(x + column);
    for (int k = 0; k < kCount; ++k) {
      const float probability = expf(values.lane[k] - most - log_sum);
      values.lane[k] = probability * factor - (target == column + k ? factor : 0.0f);
    }
    store_floats<E, kCount>(x + column, values);
  });
}

/// Combines the statistics of all ranks and stores the maximum of the row.
struct SplitRows {
  SplitParts parts;
  int64_t rows;
  float* maxima;
  __device__ RowStatistics operator()(int64_t row) const {
    const RowStatistics combined = combined_row(parts, rows, row);
    maxima[row] = combined.maximum;
    return combined;
  }
};

}  // namespace

void initialize_logits(Stream& stream, const RunningRowStatistics& rows, float* target_logits, int64_t count) {
  start_kernel(stream, "initialize logits", launch_grid(count), initialize_rows, rows, target_logits, count);
}

void accumulate_logits(Stream& stream, const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                       float* target_logits) {
  as_element(tile.logits.type, [&]<class E>(E) {
    start_kernel(stream, "accumulate logits", launch_grid(tile.rows * kLanesPerWarp), accumulate_rows<E>, tile, rows,
                 targets, target_logits);
  });
}

void logits_backward(Stream& stream, const LogitTile& tile, const LossRows& rows) {
  as_element(tile.logits.type, [&]<class E>(E) {
    const RowGrid grid = row_grid(tile.rows, tile.columns, kLogitPack<E>);
    start_kernel(stream, "loss backward", grid.grid, differentiate_rows<E>, tile, rows, grid.blocks_per_row);
  });
}

}  // namespace cuda

void split_loss_statistics(Stream& stream, const LogitTile& logits, const int32_t* targets, float* part) {
  const RunningRowStatistics rows{part, part + logits.rows};
  float* target_logits = part + 2 * logits.rows;
  cuda::initialize_logits(stream, rows, target_logits, logits.rows);
  cuda::accumulate_logits(stream, logits, rows, targets, target_logits);
}

void split_loss_forward(Stream& stream, const SplitLoss& loss) {
  cuda::sum_row_losses(stream, cuda::SplitRows{loss.parts, loss.rows, loss.maxima},
                       {loss.log_sums, loss.targets, loss.rows, loss.sum});
}

void split_loss_backward(Stream& stream, const LogitTile& logits, const LossRows& loss) {
  cuda::logits_backward(stream, logits, loss);
}

}  // namespace aliquot
