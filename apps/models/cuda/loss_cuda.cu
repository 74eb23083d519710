// The CUDA kernels of the loss that keep logits in 16 bits, and that add up the rows.
#include "apps/models/cuda/layers_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/row_losses_cuda.h"

namespace aliquot::cuda {
namespace {

template <class To>
__global__ void keep_rows(const LogitTile to, const float* computed, int64_t computed_stride,
                          const float* tile_maxima) {
  auto* kept = static_cast<typename To::Storage*>(to.logits.data);
  for (int64_t i = launch_thread(); i < to.rows * to.columns; i += launch_stride()) {
    const int64_t row = i / to.columns, column = i % to.columns;
    kept[row * to.stride + column] = To::store(computed[row * computed_stride + column] - tile_maxima[row]);
  }
}

/// The statistics of a row that tiled_loss_statistics() computed.
struct BufferedRows {
  LossBuffers buffers;
  const float* target_logits;
  __device__ RowStatistics operator()(int64_t row) const {
    return {buffers.maxima[row], buffers.scratch[row], target_logits[row]};
  }
};

}  // namespace

void keep_logits(Stream& stream, const LogitTile& to, const LogitTile& computed, const float* tile_maxima) {
  as_element(to.logits.type, [&]<class To>(To) {
    start_kernel(stream, "keep logits", launch_grid(to.rows * to.columns), keep_rows<To>, to, computed.logits.fp32(),
                 computed.stride, tile_maxima);
  });
}

void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum) {
  sum_row_losses(stream, BufferedRows{buffers, target_logits}, {buffers.log_sums, targets, count, sum});
}

}  // namespace aliquot::cuda
