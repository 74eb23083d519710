#pragma once
// Attention in fp32 without tensor cores: one warp for each query or key. Used for fp32 arrays and for heads that are
// too wide for the tensor-core kernels. Use it in *.cu files only.

#include "apps/models/cuda/attention_place_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// The number of elements of a head's row that one lane holds: elements lane, lane + 32, ...
inline constexpr int kElementsPerLane = static_cast<int>(kWidestHead) / kLanesPerWarp;

struct WarpRow {
  float part[kElementsPerLane] = {};

  __device__ void scale(float factor) {
    for (float& p : part) p *= factor;
  }
  template <class E>
  __device__ void add(float factor, const typename E::Storage* row, int64_t width) {
    for (int k = 0; k < kElementsPerLane; ++k) {
      const int64_t c = warp_lane() + k * kLanesPerWarp;
      if (c < width) part[k] += factor * E::load(row[c]);
    }
  }
  template <class E>
  __device__ void put(typename E::Storage* row, int64_t width, float factor) const {
    for (int k = 0; k < kElementsPerLane; ++k) {
      const int64_t c = warp_lane() + k * kLanesPerWarp;
      if (c < width) row[c] = E::store(part[k] * factor);
    }
  }
};

template <class A, class B>
__device__ float dot(const typename A::Storage* a, const typename B::Storage* b, int64_t width) {
  float sum = 0.0f;
  for (int64_t c = 0; c < width; ++c) sum += A::load(a[c]) * B::load(b[c]);
  return sum;
}

/// The forward of one query by one warp. key_at(k) and value_at(k) return the rows of key k. Writes the row of the
/// output, and returns the log of the sum of exp(score).
template <class E, class KeyAt, class ValueAt>
__device__ float attend_row(const AttentionShape& s, int64_t query, int64_t first_key,
                            const typename E::Storage* query_row, typename E::Storage* to, const KeyAt& key_at,
                            const ValueAt& value_at) {
  WarpRow sum;
  float most = -INFINITY, total = 0.0f;
  for (int64_t first = first_key; first <= query; first += kLanesPerWarp) {
    const int64_t key = first + warp_lane();
    const float score = key <= query ? dot<E, E>(query_row, key_at(key), s.head_width) * score_scale(s) : -INFINITY;
    const float now = fmaxf(most, max_of_lanes(score));
    const float probability = expf(score - now), before = expf(most - now);
    total = total * before + sum_of_lanes(probability);
    most = now;
    sum.scale(before);
    for (int j = 0; j < kLanesPerWarp; ++j) {
      const float p = __shfl_sync(0xffffffffu, probability, j);
      if (first + j <= query) sum.add<E>(p, value_at(first + j), s.head_width);
    }
  }
  sum.put<E>(to, s.head_width, 1.0f / total);
  return most + logf(total);
}

template <class E>
__global__ void attend_rows(const AttentionForward a) {
  const AttentionShape& s = a.shape;
  const auto* qkv = static_cast<const typename E::Storage*>(a.qkv.data);
  for (int64_t i = launch_warp(); i < s.batch * s.heads * s.sequence; i += launch_warp_stride()) {
    const HeadOffsets at(s, i / s.sequence);
    const int64_t query = i % s.sequence;
    const float log_sum = attend_row<E>(
        s, query, s.first_key(query), qkv + at.query(s, query),
        static_cast<typename E::Storage*>(a.to.data) + at.output(s, query),
        [&](int64_t key) { return qkv + at.key(s, key); }, [&](int64_t key) { return qkv + at.value(s, key); });
    if (warp_lane() == 0) a.log_sums[i] = log_sum;
  }
}

/// Stores dot(output, gradient of the output) of each query in `scratch`. Each query has one warp.
template <class E>
__global__ void sum_deltas(const AttentionBackward a) {
  const AttentionShape& s = a.shape;
  const auto* output = static_cast<const typename E::Storage*>(a.output.data);
  for (int64_t i = launch_warp(); i < s.batch * s.heads * s.sequence; i += launch_warp_stride()) {
    const int64_t row = HeadOffsets(s, i / s.sequence).output(s, i % s.sequence);
    float sum = 0.0f;
    for (int64_t c = warp_lane(); c < s.head_width; c += kLanesPerWarp)
      sum += E::load(output[row + c]) * a.from[row + c];
    sum = sum_of_lanes(sum);
    if (warp_lane() == 0) a.scratch[i] = sum;
  }
}

/// Computes the gradients of queries.
template <class E>
__global__ void attend_rows_backward_queries(const AttentionBackward a) {
  const AttentionShape& s = a.shape;
  const auto* qkv = static_cast<const typename E::Storage*>(a.qkv.data);
  for (int64_t i = launch_warp(); i < s.batch * s.heads * s.sequence; i += launch_warp_stride()) {
    const HeadOffsets at(s, i / s.sequence);
    const int64_t query = i % s.sequence;
    const typename E::Storage* q = qkv + at.query(s, query);
    const float* from = a.from + at.output(s, query);
    WarpRow sum;
    for (int64_t first = s.first_key(query); first <= query; first += kLanesPerWarp) {
      const int64_t key = first + warp_lane();
      float gradient = 0.0f;
      if (key <= query) {
        const float score = dot<E, E>(q, qkv + at.key(s, key), s.head_width) * score_scale(s);
        const float of_value = dot<Fp32Element, E>(from, qkv + at.value(s, key), s.head_width);
        gradient = expf(score - a.log_sums[i]) * (of_value - a.scratch[i]);
      }
      for (int j = 0; j < kLanesPerWarp; ++j) {
        const float g = __shfl_sync(0xffffffffu, gradient, j);
        if (first + j <= query) sum.add<E>(g, qkv + at.key(s, first + j), s.head_width);
      }
    }
    sum.put<E>(static_cast<typename E::Storage*>(a.to.data) + at.query(s, query), s.head_width, score_scale(s));
  }
}

/// Computes the gradients of keys and values. Several query heads may share a key and value head: their contributions
/// are added in the order of the heads.
template <class E>
__global__ void attend_rows_backward_keys(const AttentionBackward a) {
  const AttentionShape& s = a.shape;
  const auto* qkv = static_cast<const typename E::Storage*>(a.qkv.data);
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t i = launch_warp(); i < s.batch * s.kv_heads * s.sequence; i += launch_warp_stride()) {
    const int64_t key = i % s.sequence, first_head = i / s.sequence * group, end = s.end_query(key);
    const HeadOffsets own(s, first_head);
    WarpRow of_key, of_value;
    for (int64_t head = first_head; head < first_head + group; ++head) {
      const HeadOffsets at(s, head);
      for (int64_t first = key; first < end; first += kLanesPerWarp) {
        const int64_t query = first + warp_lane();
        float probability = 0.0f, gradient = 0.0f;
        if (query < end) {
          const int64_t place = head * s.sequence + query;
          const float score = dot<E, E>(qkv + at.query(s, query), qkv + at.key(s, key), s.head_width) * score_scale(s);
          probability = expf(score - a.log_sums[place]);
          const float of_this = dot<Fp32Element, E>(a.from + at.output(s, query), qkv + at.value(s, key), s.head_width);
          gradient = probability * (of_this - a.scratch[place]);
        }
        for (int j = 0; j < kLanesPerWarp; ++j) {
          const float p = __shfl_sync(0xffffffffu, probability, j), g = __shfl_sync(0xffffffffu, gradient, j);
          if (first + j >= end) continue;
          of_value.add<Fp32Element>(p, a.from + at.output(s, first + j), s.head_width);
          of_key.add<E>(g, qkv + at.query(s, first + j), s.head_width);
        }
      }
    }
    auto* to = static_cast<typename E::Storage*>(a.to.data);
    of_key.put<E>(to + own.key(s, key), s.head_width, score_scale(s));
    of_value.put<E>(to + own.value(s, key), s.head_width, 1.0f);
  }
}

}  // namespace aliquot::cuda
