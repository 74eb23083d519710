#pragma once
// Prepares the backward of attention on tensor cores. Use it in *.cu files only.

#include "apps/models/cuda/attention_place_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// Stores dot(output, gradient of the output) of each query in `scratch`. Rounds the gradient to E: the first half of
/// each fp32 row becomes a row of E, see HeadOffsets::rounded_gradient(). Each row of all heads has one warp.
template <class E, int kWidth>
__global__ void sum_deltas_and_round(const AttentionBackward a) {
  const AttentionShape& s = a.shape;
  const auto* outputs = static_cast<const uint16_t*>(a.output.data);
  for (int64_t row = launch_warp(); row < s.batch * s.sequence; row += launch_warp_stride()) {
    const int64_t first_head = row / s.sequence * s.heads;
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t at = row * s.width() + head * s.head_width;
      float gradients[kWidth / kLanesPerWarp], sum = 0.0f;
      for (int k = 0; k < kWidth / kLanesPerWarp; ++k) {
        const int64_t c = warp_lane() + k * kLanesPerWarp;
        gradients[k] = c < s.head_width ? a.from[at + c] : 0.0f;
        if (c < s.head_width) sum += E::load(outputs[at + c]) * gradients[k];
      }
      sum = sum_of_lanes(sum);
      if (warp_lane() == 0) a.scratch[(first_head + head) * s.sequence + row % s.sequence] = sum;
      __syncwarp();  // the lanes have loaded all elements that the stores replace
      auto* rounded =
          reinterpret_cast<uint16_t*>(a.from) + HeadOffsets(s, first_head + head).rounded_gradient(s, row % s.sequence);
      for (int k = 0; k < kWidth / kLanesPerWarp; ++k) {
        const int64_t c = warp_lane() + k * kLanesPerWarp;
        if (c < s.head_width) rounded[c] = E::store(gradients[k]);
      }
    }
  }
}

}  // namespace aliquot::cuda
