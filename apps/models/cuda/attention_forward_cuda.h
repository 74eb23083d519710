#pragma once
// The forward of attention on tensor cores: see attention_tiles_cuda.h. Use it in *.cu files only.

#include "apps/models/cuda/attention_query_block_cuda.h"

namespace aliquot::cuda {

/// Registers limit the tiles.
template <int kWidth>
using ForwardTiles = QueryTiles<kWidth, 1, 64, kWidth <= 64>;

/// The running softmax of a lane's two rows of a strip: the largest score so far and the lane's part of the sum of
/// 2^(scale * (score - largest)).
struct RunningSoftmax {
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {};

  /// Replaces scores by 2^(scale * (score - largest)). Sets `before` to the factors of earlier sums.
  template <int kKeys>
  __device__ void update(Sums (&scores)[kKeys / 8], float scale, float (&before)[2]) {
    float now[2] = {most[0], most[1]}, shift[2];
    for (const Sums& of : scores) {
      for (int i = 0; i < 4; ++i) now[i / 2] = fmaxf(now[i / 2], of[i]);
    }
    for (int half = 0; half < 2; ++half) {
      now[half] = max_of_lanes<kLanesOfRow>(now[half]);
      // With a window, all keys so far can be masked. Their scores are -infinity, and any finite shift serves.
      shift[half] = now[half] == -INFINITY ? 0.0f : -scale * now[half];
      before[half] = approximate_exp2(fmaf(most[half], scale, shift[half]));
      most[half] = now[half];
      total[half] *= before[half];
    }
    for (Sums& of : scores) {
      for (int i = 0; i < 4; ++i) {
        of[i] = approximate_exp2(fmaf(of[i], scale, shift[i / 2]));
        total[i / 2] += of[i];
      }
    }
  }
};

/// The outputs of a warp's queries.
template <class E, int kWidth>
struct WarpOutputs {
  using Tiles = ForwardTiles<kWidth>;
  using Block = QueryBlock<kWidth, Tiles>;
  static constexpr int kStrips = Tiles::kStrips, kKeys = Tiles::kKeys;

  WarpSums<kStrips, kWidth> sums = {};
  RunningSoftmax softmax[kStrips];

  /// Adds the contributions of the keys in one of two buffers.
  __device__ void add(const Block& block, int buffer, const typename Tiles::Rows& queries,
                      const TileMask<Tiles::kWarpRows, kKeys>& mask, float scale) {
    WarpSums<kStrips, kKeys> scores;
    clear<kStrips, kKeys>(scores);
    add_products<E, kWidth, kKeys, kStrips>(scores, queries, block.keys(buffer));
    if (!mask.all()) mask_scores<kStrips, kKeys>(scores, [&](int query, int key) { return mask.attends(query, key); });
    RowFactors<kStrips> before;
    for (int strip = 0; strip < kStrips; ++strip)
      softmax[strip].template update<kKeys>(scores[strip], scale, before[strip]);
    scale_rows<kStrips, kWidth>(sums, before);
    add_weighted_rows<E, kWidth, kKeys, kStrips>(sums, scores, block.values(buffer));
  }

  /// Divides the sums by the sums of exp(score). Stores the logs of these for `count` queries.
  __device__ void finish(float* log_sums, int count, float scale) {
    RowFactors<kStrips> factors;
    for (int strip = 0; strip < kStrips; ++strip) {
      for (int half = 0; half < 2; ++half) {
        const float total = sum_of_lanes<kLanesOfRow>(softmax[strip].total[half]);
        factors[strip][half] = 1.0f / total;
        const int row = strip * kStripRows + row_in_strip(2 * half);
        if (warp_lane() % kLanesOfRow == 0 && row < count)
          log_sums[row] = fmaf(softmax[strip].most[half], scale, logf(total));
      }
    }
    scale_rows<kStrips, kWidth>(sums, factors);
  }
};

template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads, 2) attend_tiles(const AttentionForward a, bool aligned) {
  using Tiles = ForwardTiles<kWidth>;
  const AttentionShape& s = a.shape;
  QueryBlock<kWidth, Tiles> block(s, a.qkv.data, aligned);
  const HeadOffsets at(s, block.head());
  int key = block.first_key();
  block.start_own(0, a.qkv.data, at.query(s, block.first_query()), s.stride());
  block.start_keys(key, 0);
  wait_for_copies();
  __syncthreads();
  const auto queries = block.own_rows(0);
  const float scale = score_scale(s) * kLog2E;
  WarpOutputs<E, kWidth> outputs;
  for (int buffer = 0; key < block.end_key(); key += Tiles::kKeys, buffer ^= 1) {
    if (key + Tiles::kKeys < block.end_key()) block.start_keys(key + Tiles::kKeys, buffer ^ 1);
    const TileMask<Tiles::kWarpRows, Tiles::kKeys> mask(s, block.warp_query(), key);
    if (!mask.none()) outputs.add(block, buffer, queries, mask, scale);
    wait_for_copies();
    __syncthreads();  // the next tile is complete, and all threads have finished with this one
  }
  outputs.finish(a.log_sums + block.head() * s.sequence + block.warp_query(), block.warp_queries(), score_scale(s));
  block.template store<E>(static_cast<uint16_t*>(a.to.data) + at.output(s, block.warp_query()), s.width(), outputs.sums,
                          1.0f);
}

}  // namespace aliquot::cuda
