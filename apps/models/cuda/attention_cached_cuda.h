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
    const float log_sum = attend_row<E>(
        s, query, of_keys.first_key(query), q,
        static_cast<typename E::Storage*>(a.to.data) + row * s.width() + head * s.head_width,
        [&](int64_t key) { return keys + key * stride; }, [&](int64_t key) { return values + key * stride; });
    if (warp_lane() == 0) a.log_sums[i] = log_sum;
  }
}

}  // namespace aliquot::cuda
