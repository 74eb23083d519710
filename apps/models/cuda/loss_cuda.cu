// The CUDA kernels that compute the loss and its gradient from logits, one tile of logits at a time.
#include <cmath>

#include "apps/models/cuda/elements_cuda.h"
#include "apps/models/cuda/layers_cuda.h"
#include "apps/models/layers/loss_tiles.h"
#include "kernels/elementwise/block_tree_cuda.h"

namespace aliquot::cuda {
namespace {

__global__ void initialize_rows(const RunningRowStatistics rows, float* target_logits, int64_t count) {
  for (int64_t row = launch_thread(); row < count; row += launch_stride()) {
    rows.maxima[row] = -INFINITY;
    rows.sums[row] = 0.0f;
    target_logits[row] = 0.0f;
  }
}

__global__ void combine_rows(const LossBuffers to, const LossParts parts, int64_t count) {
  for (int64_t row = launch_thread(); row < count; row += launch_stride()) {
    const RowStatistics combined = combined_row(parts, count, row);
    to.maxima[row] = combined.maximum;
    to.scratch[row] = combined.sum;
    to.scratch[count + row] = combined.target_logit;
  }
}

__global__ void accumulate_rows(const LogitTile tile, const RunningRowStatistics rows, const int32_t* targets,
                                float* target_logits) {
  for (int64_t row = launch_warp(); row < tile.rows; row += launch_warp_stride()) {
    const float* x = static_cast<const float*>(tile.logits.data) + row * tile.stride;
    float tile_most = -INFINITY;
    for (int64_t c = warp_lane(); c < tile.columns; c += kLanesPerWarp) tile_most = fmaxf(tile_most, x[c]);
    tile_most = max_of_lanes(tile_most);
    const float before = rows.maxima[row], most = fmaxf(before, tile_most);
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < tile.columns; c += kLanesPerWarp)
      sum += x[c] == -INFINITY ? 0.0f : expf(x[c] - most);
    sum = sum_of_lanes(sum);  // synchronizes: all lanes have read rows.maxima
    if (warp_lane() != 0) continue;
    rows.sums[row] = (rows.sums[row] == 0.0f ? 0.0f : rows.sums[row] * expf(before - most)) + sum;
    rows.maxima[row] = most;
    if (rows.tile_maxima != nullptr) rows.tile_maxima[row] = tile_most;
    const int64_t column = targets[row] - tile.first_entry;
    if (0 <= column && column < tile.columns) target_logits[row] = x[column];
  }
}

template <class To>
__global__ void keep_rows(const LogitTile to, const float* computed, int64_t computed_stride,
                          const float* tile_maxima) {
  auto* kept = static_cast<typename To::Storage*>(to.logits.data);
  for (int64_t i = launch_thread(); i < to.rows * to.columns; i += launch_stride()) {
    const int64_t row = i / to.columns, column = i % to.columns;
    kept[row * to.stride + column] = To::store(computed[row * computed_stride + column] - tile_maxima[row]);
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

constexpr int kFinishThreads = 256;

/// Runs in one thread block. Each thread adds consecutive rows from first to last; then a tree adds the threads' sums.
__global__ void __launch_bounds__(kFinishThreads) reduce_rows(const LossBuffers buffers, const int32_t* targets,
                                                              const float* target_logits, int64_t count, double* sum) {
  __shared__ double parts[kFinishThreads];
  const int64_t begin = count * threadIdx.x / kFinishThreads, end = count * (threadIdx.x + 1) / kFinishThreads;
  double own = 0;
  for (int64_t row = begin; row < end; ++row) {
    const double log_sum = log(static_cast<double>(buffers.scratch[row]));
    buffers.log_sums[row] = static_cast<float>(log_sum);
    if (targets[row] == kIgnoredTarget) continue;
    own += log_sum + (static_cast<double>(buffers.maxima[row]) - static_cast<double>(target_logits[row]));
  }
  parts[threadIdx.x] = own;
  for (unsigned half = 1; half < kFinishThreads; half *= 2) {
    __syncthreads();
    if (threadIdx.x % (2 * half) == 0) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = parts[0];
}

}  // namespace

void initialize_logits(Stream& stream, const RunningRowStatistics& rows, float* target_logits, int64_t count) {
  start_kernel(stream, "initialize logits", launch_grid(count), initialize_rows, rows, target_logits, count);
}

void combine_parts(Stream& stream, const LossBuffers& to, const LossParts& parts, int64_t count) {
  start_kernel(stream, "combine parts of the loss", launch_grid(count), combine_rows, to, parts, count);
}

void accumulate_logits(Stream& stream, const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                       float* target_logits) {
  start_kernel(stream, "accumulate logits", launch_grid(tile.rows * kLanesPerWarp), accumulate_rows, tile, rows,
               targets, target_logits);
}

void keep_logits(Stream& stream, const LogitTile& to, const LogitTile& computed, const float* tile_maxima) {
  as_element(to.logits.type, [&]<class To>(To) {
    start_kernel(stream, "keep logits", launch_grid(to.rows * to.columns), keep_rows<To>, to, computed.logits.fp32(),
                 computed.stride, tile_maxima);
  });
}

void logits_backward(Stream& stream, const LogitTile& tile, const LossRows& rows, const float* tile_maxima) {
  as_element(tile.logits.type, [&]<class E>(E) {
    start_kernel(stream, "loss backward", launch_grid(tile.rows * tile.columns), differentiate_rows<E>, tile, rows,
                 tile_maxima);
  });
}

void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum) {
  start_kernel(stream, "reduce loss", {1, kFinishThreads}, reduce_rows, buffers, targets, target_logits, count, sum);
}

}  // namespace aliquot::cuda
