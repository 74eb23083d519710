#pragma once
// The deltas of the backward of attention: dot(output, gradient of the output) for each query of each head. The kernels
// store them in AttentionBackward::scratch. Use it in *.cu files only.

#include "apps/models/cuda/attention_place_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// Each query has one warp.
template <class E>
__global__ void sum_deltas(const AttentionBackward a) {
  const AttentionShape& s = a.shape;
  const auto* output = static_cast<const typename E::Storage*>(a.output.data);
  const auto* from = static_cast<const typename E::Storage*>(a.from.data);
  for (int64_t i = launch_warp(); i < s.batch * s.heads * s.sequence; i += launch_warp_stride()) {
    const int64_t row = HeadOffsets(s, i / s.sequence).output(s, i % s.sequence);
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < s.head_width; c += kLanesPerWarp)
      sum += E::load(output[row + c]) * E::load(from[row + c]);
    sum = sum_of_lanes(sum);
    if (warp_lane() == 0) a.scratch[i] = sum;
  }
}

/// The number of lanes, a power of two, that load a row of kWidth 16-bit elements in packs of 16 bytes.
template <int kWidth>
inline constexpr int kDeltaLanes = kWidth > 64 ? 16 : kWidth / 8;

/// Like sum_deltas(), for rows of up to kWidth 16-bit elements, which begin and end at multiples of 16 bytes. Each
/// query has kDeltaLanes lanes.
template <class E, int kWidth>
__global__ void sum_deltas_of_packs(const AttentionBackward a) {
  constexpr int kLanes = kDeltaLanes<kWidth>, kRows = kLanesPerWarp / kLanes;
  const AttentionShape& s = a.shape;
  const auto* output = static_cast<const uint16_t*>(a.output.data);
  const auto* from = static_cast<const uint16_t*>(a.from.data);
  const int64_t count = s.batch * s.heads * s.sequence, column = warp_lane() % kLanes * 8;
  for (int64_t first = launch_warp() * kRows; first < count; first += launch_warp_stride() * kRows) {
    const int64_t i = first + warp_lane() / kLanes;
    float sum = 0.0f;
    if (i < count && column < s.head_width) {
      const int64_t at = HeadOffsets(s, i / s.sequence).output(s, i % s.sequence) + column;
      const auto x = load_floats<E, 8>(output + at), y = load_floats<E, 8>(from + at);
      for (int k = 0; k < 8; ++k) sum += x.lane[k] * y.lane[k];
    }
    sum = sum_of_lanes<kLanes>(sum);
    if (i < count && column == 0) a.scratch[i] = sum;
  }
}

}  // namespace aliquot::cuda
