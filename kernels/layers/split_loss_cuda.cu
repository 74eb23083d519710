// The CUDA kernels that compute a loss and its gradient from a tile of logits.
#include <cmath>

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

template <class E>
__global__ void accumulate_rows(const LogitTile tile, const RunningRowStatistics rows, const int32_t* targets,
                                float* target_logits) {
  for (int64_t row = launch_warp(); row < tile.rows; row += launch_warp_stride()) {
    const auto* x = static_cast<const typename E::Storage*>(tile.logits.data) + row * tile.stride;
    float tile_most = -INFINITY;
    for (int64_t c = warp_lane(); c < tile.columns; c += kLanesPerWarp) tile_most = fmaxf(tile_most, E::load(x[c]));
    tile_most = max_of_lanes(tile_most);
    const float before = rows.maxima[row], most = fmaxf(before, tile_most);
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < tile.columns; c += kLanesPerWarp) {
      const float logit = E::load(x[c]);
      sum += logit == -INFINITY ? 0.0f : expf(logit - most);
    }
    sum = sum_of_lanes(sum);  // synchronizes: all lanes have read rows.maxima
    if (warp_lane() != 0) continue;
    rows.sums[row] = (rows.sums[row] == 0.0f ? 0.0f : rows.sums[row] * expf(before - most)) + sum;
    rows.maxima[row] = most;
    if (rows.tile_maxima != nullptr) rows.tile_maxima[row] = tile_most;
    const int64_t column = targets[row] - tile.first_entry;
    if (0 <= column && column < tile.columns) target_logits[row] = E::load(x[column]);
  }
}

template <class E>
__global__ void differentiate_rows(const LogitTile tile, const LossRows rows, const float* tile_maxima) {
  auto* logits = static_cast<typename E::Storage*>(tile.logits.data);
  for (int64_t i = launch_thread(); i < tile.rows * tile.columns; i += launch_stride()) {
    const int64_t row = i / tile.columns, column = i % tile.columns;
    const float most = rows.maxima[row] - (tile_maxima == nullptr ? 0.0f : tile_maxima[row]);
    typename E::Storage* x = logits + row * tile.stride + column;
    const float probability = expf(E::load(*x) - most - rows.log_sums[row]);
    const bool is_target = rows.targets[row] - tile.first_entry == column;
    const float factor = rows.targets[row] < 0 ? 0.0f : rows.factor;
    *x = E::store(probability * factor - (is_target ? factor : 0.0f));
  }
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

void logits_backward(Stream& stream, const LogitTile& tile, const LossRows& rows, const float* tile_maxima) {
  as_element(tile.logits.type, [&]<class E>(E) {
    start_kernel(stream, "loss backward", launch_grid(tile.rows * tile.columns), differentiate_rows<E>, tile, rows,
                 tile_maxima);
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
  cuda::logits_backward(stream, logits, loss, nullptr);
}

}  // namespace aliquot
