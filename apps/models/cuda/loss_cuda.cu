// The CUDA kernels of the loss that keep logits in 16 bits, and that add up the rows.
#include "apps/models/cuda/layers_cuda.h"
#include "kernels/device/row_loops_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/row_losses_cuda.h"

namespace aliquot::cuda {
namespace {

template <class To>
__global__ void keep_rows(const LogitTile to, const float* computed, int64_t computed_stride, const float* tile_maxima,
                          unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= to.rows) return;
  auto* kept = static_cast<typename To::Storage*>(to.logits.data) + place.row * to.stride;
  const float* from = computed + place.row * computed_stride;
  const float most = tile_maxima[place.row];
  for_row<kPackElements>(to.columns, elements_before_row_packs<kPackElements>(kept, from), place,
                         [&]<int kCount>(int column) {
                           auto values = load_floats<Fp32Element, kCount>(from + column);
                           for (float& value : values.lane) value -= most;
                           store_floats<To, kCount>(kept + column, values);
                         });
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
    const RowGrid grid = row_grid(to.rows, to.columns, kPackElements);
    start_kernel(stream, "keep logits", grid.grid, keep_rows<To>, to, computed.logits.fp32(), computed.stride,
                 tile_maxima, grid.blocks_per_row);
  });
}

void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum) {
  sum_row_losses(stream, BufferedRows{buffers, target_logits}, {buffers.log_sums, targets, count, sum});
}

}  // namespace aliquot::cuda
