// The CUDA kernel that adds the losses of rows.
#include "apps/models/cuda/layers_cuda.h"
#include "kernels/layers/row_losses_cuda.h"

namespace aliquot::cuda {
namespace {

/// The statistics of a row that tiled_loss_statistics() computed.
struct BufferedRows {
  LossBuffers buffers;
  const float* target_logits;
  __device__ RowStatistics operator()(int64_t row) const {
    return {buffers.maxima[row], buffers.scratch[row], target_logits[row]};
  }
};

}  // namespace

void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum) {
  sum_row_losses(stream, BufferedRows{buffers, target_logits}, {buffers.log_sums, targets, count, sum});
}

}  // namespace aliquot::cuda
