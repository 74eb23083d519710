#pragma once
// Computes the offsets of the rows of an attention head in arrays of queries, keys, values and outputs. Use it in *.cu
// files only.

#include <cmath>
#include <cstdint>

#include "apps/models/cuda/layers_cuda.h"

namespace aliquot::cuda {

__device__ inline float score_scale(const AttentionShape& s) { return 1.0f / sqrtf(static_cast<float>(s.head_width)); }

/// Offsets of one head, in elements of qkv or of the output. `head` is the index among all heads of all sequences.
struct HeadOffsets {
  int64_t first_row, own_head, kv_head;

  __device__ HeadOffsets(const AttentionShape& s, int64_t head)
      : first_row(head / s.heads * s.sequence), own_head(head % s.heads), kv_head(own_head / (s.heads / s.kv_heads)) {}
  __device__ int64_t query(const AttentionShape& s, int64_t row) const {
    return (first_row + row) * s.stride() + own_head * s.head_width;
  }
  __device__ int64_t key(const AttentionShape& s, int64_t row) const {
    return (first_row + row) * s.stride() + (s.heads + kv_head) * s.head_width;
  }
  __device__ int64_t value(const AttentionShape& s, int64_t row) const { return key(s, row) + s.kv_width(); }
  __device__ int64_t output(const AttentionShape& s, int64_t row) const {
    return (first_row + row) * s.width() + own_head * s.head_width;
  }
  /// The offset in the gradient of the output, after sum_deltas_and_round() has rounded it to 16 bits in place.
  __device__ int64_t rounded_gradient(const AttentionShape& s, int64_t row) const {
    return (first_row + row) * rounded_stride(s) + own_head * s.head_width;
  }
  __device__ static int64_t rounded_stride(const AttentionShape& s) { return 2 * s.width(); }
};

}  // namespace aliquot::cuda
