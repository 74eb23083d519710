#pragma once
// The backward of attention on tensor cores: see attention_tiles_cuda.h. AttentionBackward::scratch holds the deltas
// that sum_deltas() computes. Use it in *.cu files only.

#include "apps/models/cuda/attention_tiles_cuda.h"

namespace aliquot::cuda {

/// The inputs of backward for one head.
template <class E>
struct HeadBackward {
  const AttentionBackward& a;
  const HeadOffsets at;
  const float *log_sums, *deltas;
  bool aligned;

  __device__ HeadBackward(const AttentionBackward& of, int64_t head, bool is_aligned)
      : a(of),
        at(of.shape, head),
        log_sums(of.log_sums + head * of.shape.sequence),
        deltas(of.scratch + head * of.shape.sequence),
        aligned(is_aligned) {}

  __device__ const uint16_t* qkv() const { return static_cast<const uint16_t*>(a.qkv.data); }
  __device__ HeadRowsView rows(int64_t first, int most) const {
    return {a.shape.stride(), valid_rows(first, a.shape.sequence, most), static_cast<int>(a.shape.head_width), aligned};
  }
  template <int kWidth, int kRows>
  __device__ void load_queries(TileRow<kWidth>* queries, TileRow<kWidth>* from, int64_t first) const {
    HeadRowsView view = rows(first, kRows);
    load_tile<E, kWidth, kRows>(queries, qkv() + at.query(a.shape, first), view);
    view.stride = a.shape.width();
    load_tile<E, kWidth, kRows>(from, a.from + at.output(a.shape, first), view);
  }
  template <int kWidth, int kRows>
  __device__ void load_keys(TileRow<kWidth>* keys, TileRow<kWidth>* values, int64_t first) const {
    load_tile<E, kWidth, kRows>(keys, qkv() + at.key(a.shape, first), rows(first, kRows));
    load_tile<E, kWidth, kRows>(values, qkv() + at.value(a.shape, first), rows(first, kRows));
  }
};

/// Replaces a score by its probability, and the gradient of the probability by the gradient of the score.
__device__ inline void differentiate(float& score, float& gradient, bool seen, float scale, float log_sum,
                                     float delta) {
  score = seen ? exp2f((score * scale - log_sum) * kLog2E) : 0.0f;
  gradient = score * (gradient - delta);
}

template <int kWidth>
constexpr unsigned attend_backward_queries_bytes() {
  return 4 * kTileRows * sizeof(TileRow<kWidth>);
}

/// Computes the gradients of queries.
template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads) attend_tiles_backward_queries(const AttentionBackward a, bool aligned) {
  const AttentionShape& s = a.shape;
  auto* queries = shared_memory<TileRow<kWidth>>();
  TileRow<kWidth>*from = queries + kTileRows, *keys = from + kTileRows, *values = keys + kTileRows;
  const int64_t tiles = (s.sequence + kTileRows - 1) / kTileRows;
  const int64_t tile = tiles - 1 - blockIdx.x % tiles, first = tile * kTileRows;
  const HeadBackward<E> head(a, blockIdx.x / tiles, aligned);
  head.template load_queries<kWidth, kTileRows>(queries, from, first);
  const HeadRowsView own = head.rows(first, kTileRows);
  const int own_row = static_cast<int>(threadIdx.x) / kLanesPerWarp * kWarpRows;
  const float scale = score_scale(s);
  float log_sum[2] = {}, delta[2] = {};
  for (int half = 0; half < 2; ++half) {
    if (row_of(2 * half) >= own.count) continue;
    log_sum[half] = head.log_sums[first + row_of(2 * half)];
    delta[half] = head.deltas[first + row_of(2 * half)];
  }
  Sums sums[kWidth / 8] = {};
  for (int64_t key = first_key_tile(s, first); key <= first; key += kTileRows) {
    __syncthreads();  // all threads have finished with the previous tiles
    head.template load_keys<kWidth, kTileRows>(keys, values, key);
    __syncthreads();
    Sums scores[kTileRows / 8], gradients[kTileRows / 8];
    multiply_rows<E, kWidth, kTileRows>(scores, queries, own_row, keys);
    multiply_rows<E, kWidth, kTileRows>(gradients, from, own_row, values);
    const TileMask<kTileRows, kTileRows> mask(s, first, key);
    for (int n = 0; n < kTileRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        const bool seen = mask.attends(row_of(i), column_of(n, i));
        differentiate(scores[n][i], gradients[n][i], seen, scale, log_sum[i / 2], delta[i / 2]);
      }
    }
    add_weighted_rows<E, kWidth, kTileRows>(sums, gradients, keys);
  }
  store_rows<E, kWidth>(static_cast<uint16_t*>(a.to.data) + head.at.query(s, first), own, sums, {scale, scale});
}

/// The number of queries in one tile. Heads wider than 64 elements need more registers for sums, so their tiles are
/// smaller.
template <int kWidth>
inline constexpr int kQueryTileRows = kWidth > 64 ? 32 : 64;

template <int kWidth>
constexpr unsigned attend_backward_keys_bytes() {
  return 2 * (kTileRows + kQueryTileRows<kWidth>)*sizeof(TileRow<kWidth>) + 2 * kQueryTileRows<kWidth> * sizeof(float);
}

/// Computes the gradients of keys and values. Scores are transposed: rows are keys and columns are queries.
template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads) attend_tiles_backward_keys(const AttentionBackward a, bool aligned) {
  constexpr int kQueries = kQueryTileRows<kWidth>;
  const AttentionShape& s = a.shape;
  auto* keys = shared_memory<TileRow<kWidth>>();
  TileRow<kWidth>*values = keys + kTileRows, *queries = values + kTileRows, *from = queries + kQueries;
  auto *log_sums = reinterpret_cast<float*>(from + kQueries), *deltas = log_sums + kQueries;
  const int64_t tiles = (s.sequence + kTileRows - 1) / kTileRows, group = s.heads / s.kv_heads;
  const int64_t first = blockIdx.x % tiles * kTileRows, first_head = blockIdx.x / tiles * group;
  const int64_t last = first + kTileRows - 1, end = last < s.sequence ? s.end_query(last) : s.sequence;
  const HeadBackward<E> shared_head(a, first_head, aligned);
  shared_head.template load_keys<kWidth, kTileRows>(keys, values, first);
  const int own_row = static_cast<int>(threadIdx.x) / kLanesPerWarp * kWarpRows;
  const float scale = score_scale(s);
  Sums of_keys[kWidth / 8] = {}, of_values[kWidth / 8] = {};
  for (int64_t i = 0; i < group; ++i) {
    const HeadBackward<E> head(a, first_head + i, aligned);
    for (int64_t query = first; query < end; query += kQueries) {
      const int count = valid_rows(query, s.sequence, kQueries);
      __syncthreads();  // all threads have finished with the previous tiles
      head.template load_queries<kWidth, kQueries>(queries, from, query);
      for (int q = static_cast<int>(threadIdx.x); q < count; q += kTileThreads) {
        log_sums[q] = head.log_sums[query + q];
        deltas[q] = head.deltas[query + q];
      }
      __syncthreads();
      Sums scores[kQueries / 8], gradients[kQueries / 8];
      multiply_rows<E, kWidth, kQueries>(scores, keys, own_row, queries);
      multiply_rows<E, kWidth, kQueries>(gradients, values, own_row, from);
      const TileMask<kQueries, kTileRows> mask(s, query, first);
      for (int n = 0; n < kQueries / 8; ++n) {
        for (int j = 0; j < 4; ++j) {
          const int q = column_of(n, j);
          const bool seen = q < count && mask.attends(q, row_of(j));
          differentiate(scores[n][j], gradients[n][j], seen, scale, seen ? log_sums[q] : 0.0f, seen ? deltas[q] : 0.0f);
        }
      }
      add_weighted_rows<E, kWidth, kQueries>(of_values, scores, from);
      add_weighted_rows<E, kWidth, kQueries>(of_keys, gradients, queries);
    }
  }
  auto* to = static_cast<uint16_t*>(a.to.data);
  const HeadRowsView own = shared_head.rows(first, kTileRows);
  store_rows<E, kWidth>(to + shared_head.at.key(s, first), own, of_keys, {scale, scale});
  store_rows<E, kWidth>(to + shared_head.at.value(s, first), own, of_values, {1.0f, 1.0f});
}

}  // namespace aliquot::cuda
