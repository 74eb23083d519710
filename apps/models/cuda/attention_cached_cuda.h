#pragma once
// The forward of attention with cached keys and values: see AttentionForward::cached. One warp for each query of each
// head, for arrays of every type. Use it in *.cu files only.

#include "apps/models/cuda/attention_rows_cuda.h"

namespace aliquot::cuda {

template <class E>
__global__ void attend_cached_rows(const AttentionForward a) {
  const AttentionShape s = a.shape, of_keys = a.shape_of_keys();
  const int64_t stride = 2 * s.kv_width();
  for (int64_t i = launch_warp(); i < s.heads * s.sequence; i += launch_warp_stride()) {
    const int64_t head = i / s.sequence, row = i % s.sequence, query = a.cached.first_query + row;
    const auto* q = static_cast<const typename E::Storage*>(a.qkv.data) + row * s.stride() + head * s.head_width;
    const auto* keys =
        static_cast<const typename E::Storage*>(a.cached.rows.data) + head / (s.heads / s.kv_heads) * s.head_width;
    const auto* values = keys + s.kv_width();
    WarpRow sum;
    float most = -INFINITY, total = 0.0f;
    for (int64_t first = of_keys.first_key(query); first <= query; first += kLanesPerWarp) {
      const int64_t key = first + warp_lane();
      const float score = key <= query ? dot<E, E>(q, keys + key * stride, s.head_width) * score_scale(s) : -INFINITY;
      const float now = fmaxf(most, max_of_lanes(score));
      const float probability = expf(score - now), before = expf(most - now);
      total = total * before + sum_of_lanes(probability);
      most = now;
      sum.scale(before);
      for (int j = 0; j < kLanesPerWarp; ++j) {
        const float p = __shfl_sync(0xffffffffu, probability, j);
        if (first + j <= query) sum.add<E>(p, values + (first + j) * stride, s.head_width);
      }
    }
    sum.put<E>(static_cast<typename E::Storage*>(a.to.data) + row * s.width() + head * s.head_width, s.head_width,
               1.0f / total);
    if (warp_lane() == 0) a.log_sums[i] = most + logf(total);
  }
}

}  // namespace aliquot::cuda
