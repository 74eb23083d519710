#pragma once
// The forward of attention on tensor cores: see attention_tiles_cuda.h. Use it in *.cu files only.

#include "apps/models/cuda/attention_tiles_cuda.h"

namespace aliquot::cuda {

/// The running softmax of a lane's two rows: the largest score so far and the sum of 2^(score - largest). Scores are
/// scaled by log2(e), so that exp2f() replaces expf().
struct RunningSoftmax {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {};

  /// Replaces scores by 2^(score - largest). Sets `before` to the factor by which to multiply earlier sums of each row.
  template <int kRows>
  __device__ void update(Sums (&scores)[kRows / 8], float (&before)[2]) {
    const float earlier[2] = {most[0], most[1]};
    float now[2] = {most[0], most[1]}, sum[2] = {};
    for (const Sums& of : scores) {
      for (int i = 0; i < 4; ++i) now[i / 2] = fmaxf(now[i / 2], of[i]);
    }
    for (int half = 0; half < 2; ++half) {
      now[half] = max_of_lanes<kRowLanes>(now[half]);
      most[half] = now[half];
      // With a window, all keys of a tile can be masked. Their scores are then -infinity, and any finite value serves.
      if (now[half] == -INFINITY) now[half] = 0.0f;
      before[half] = exp2f(earlier[half] - now[half]);
    }
    for (Sums& of : scores) {
      for (int i = 0; i < 4; ++i) {
        of[i] = exp2f(of[i] - now[i / 2]);
        sum[i / 2] += of[i];
      }
    }
    for (int half = 0; half < 2; ++half) total[half] = total[half] * before[half] + sum_of_lanes<kRowLanes>(sum[half]);
  }
};

/// Shared memory of attend_tiles(), in bytes.
template <int kWidth>
constexpr unsigned attend_bytes() {
  return 3 * kTileRows * sizeof(TileRow<kWidth>);
}

template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads) attend_tiles(const AttentionForward a, bool aligned) {
  const AttentionShape& s = a.shape;
  auto* queries = shared_memory<TileRow<kWidth>>();
  TileRow<kWidth>*keys = queries + kTileRows, *values = keys + kTileRows;
  const int64_t tiles = (s.sequence + kTileRows - 1) / kTileRows;
  // The thread blocks with the most keys start first.
  const int64_t tile = tiles - 1 - blockIdx.x % tiles, head = blockIdx.x / tiles, first = tile * kTileRows;
  const HeadOffsets at(s, head);
  const auto* qkv = static_cast<const uint16_t*>(a.qkv.data);
  const int width = static_cast<int>(s.head_width), count = valid_rows(first, s.sequence, kTileRows);
  load_tile<E, kWidth, kTileRows>(queries, qkv + at.query(s, first), {s.stride(), count, width, aligned});
  const int own_row = static_cast<int>(threadIdx.x) / kLanesPerWarp * kWarpRows;
  const float scale = score_scale(s) * kLog2E;
  Sums sums[kWidth / 8] = {};
  RunningSoftmax softmax;
  for (int64_t key = first_key_tile(s, first); key <= first; key += kTileRows) {
    const HeadRowsView view{s.stride(), valid_rows(key, s.sequence, kTileRows), width, aligned};
    __syncthreads();  // all threads have finished with the previous tiles
    load_tile<E, kWidth, kTileRows>(keys, qkv + at.key(s, key), view);
    load_tile<E, kWidth, kTileRows>(values, qkv + at.value(s, key), view);
    __syncthreads();
    Sums scores[kTileRows / 8];
    multiply_rows<E, kWidth, kTileRows>(scores, queries, own_row, keys);
    const TileMask<kTileRows, kTileRows> mask(s, first, key);
    for (int n = 0; n < kTileRows / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = mask.attends(row_of(i), column_of(n, i)) ? scores[n][i] * scale : -INFINITY;
      }
    }
    float before[2];
    softmax.template update<kTileRows>(scores, before);
    for (Sums& sum : sums) {
      for (int i = 0; i < 4; ++i) sum[i] *= before[i / 2];
    }
    add_weighted_rows<E, kWidth, kTileRows>(sums, scores, values);
  }
  store_rows<E, kWidth>(static_cast<uint16_t*>(a.to.data) + at.output(s, first), {s.width(), count, width, false}, sums,
                        {1.0f / softmax.total[0], 1.0f / softmax.total[1]});
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(2 * half);
    if (warp_lane() % 4 == 0 && row < count) {
      a.log_sums[head * s.sequence + first + row] = softmax.most[half] / kLog2E + logf(softmax.total[half]);
    }
  }
}

}  // namespace aliquot::cuda
