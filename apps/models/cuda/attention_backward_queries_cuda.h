#pragma once
// The gradients of queries in attention on tensor cores: see attention_tiles_cuda.h. AttentionBackward::scratch holds
// the deltas, and `from` the rounded gradients, of sum_deltas_and_round(). Use it in *.cu files only.

#include "apps/models/cuda/attention_query_block_cuda.h"

namespace aliquot::cuda {

/// Registers limit the tiles.
template <int kWidth>
using BackwardQueriesTiles = QueryTiles<kWidth, 2, 32, kWidth <= 64>;

/// Loads the elements of `from` for a lane's rows of a warp and multiplies them by `factor`.
template <int kStrips>
__device__ void load_row_factors(RowFactors<kStrips>& to, const float* from, int count, float factor) {
  for (int strip = 0; strip < kStrips; ++strip) {
    for (int half = 0; half < 2; ++half) {
      const int row = strip * kStripRows + row_in_strip(2 * half);
      to[strip][half] = row < count ? from[row] * factor : 0.0f;
    }
  }
}

/// The gradients of a warp's queries.
template <class E, int kWidth>
struct QueryGradients {
  using Tiles = BackwardQueriesTiles<kWidth>;
  using Block = QueryBlock<kWidth, Tiles>;
  static constexpr int kStrips = Tiles::kStrips, kKeys = Tiles::kKeys;

  RowFactors<kStrips> shifts, minus_deltas;
  WarpSums<kStrips, kWidth> sums = {};

  /// Loads the log sums and deltas of the warp's queries.
  __device__ QueryGradients(const AttentionBackward& a, const Block& block) {
    const int64_t first = block.head() * a.shape.sequence + block.warp_query();
    load_row_factors<kStrips>(shifts, a.log_sums + first, block.warp_queries(), -kLog2E);
    load_row_factors<kStrips>(minus_deltas, a.scratch + first, block.warp_queries(), -1.0f);
  }
  /// Adds the contributions of the keys in one of two buffers.
  __device__ void add(const Block& block, int buffer, const typename Tiles::Rows& queries,
                      const typename Tiles::Rows& from, const TileMask<Tiles::kWarpRows, kKeys>& mask, float scale) {
    WarpSums<kStrips, kKeys> scores, gradients;
    clear<kStrips, kKeys>(scores);
    add_products<E, kWidth, kKeys, kStrips>(scores, queries, block.keys(buffer));
    if (!mask.all()) mask_scores<kStrips, kKeys>(scores, [&](int query, int key) { return mask.attends(query, key); });
    for_sums<kStrips, kKeys>(
        [&](int strip, int n, int i, int, int) { gradients[strip][n][i] = minus_deltas[strip][i / 2]; });
    add_products<E, kWidth, kKeys, kStrips>(gradients, from, block.values(buffer));
    for_sums<kStrips, kKeys>([&](int strip, int n, int i, int, int) {
      gradients[strip][n][i] *= approximate_exp2(fmaf(scores[strip][n][i], scale, shifts[strip][i / 2]));
    });
    add_weighted_rows<E, kWidth, kKeys, kStrips>(sums, gradients, block.keys(buffer));
  }
};

template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads, 2)
    attend_tiles_backward_queries(const AttentionBackward a, bool aligned) {
  using Tiles = BackwardQueriesTiles<kWidth>;
  const AttentionShape& s = a.shape;
  QueryBlock<kWidth, Tiles> block(s, a.qkv.data, aligned);
  const HeadOffsets at(s, block.head());
  int key = block.first_key();
  block.start_own(0, a.qkv.data, at.query(s, block.first_query()), s.stride());
  block.start_own(1, a.from, at.rounded_gradient(s, block.first_query()), HeadOffsets::rounded_stride(s));
  block.start_keys(key, 0);
  QueryGradients<E, kWidth> gradients(a, block);
  wait_for_copies();
  __syncthreads();
  const auto queries = block.own_rows(0), from = block.own_rows(1);
  const float scale = score_scale(s) * kLog2E;
  for (int buffer = 0; key < block.end_key(); key += Tiles::kKeys, buffer ^= 1) {
    if (key + Tiles::kKeys < block.end_key()) block.start_keys(key + Tiles::kKeys, buffer ^ 1);
    const TileMask<Tiles::kWarpRows, Tiles::kKeys> mask(s, block.warp_query(), key);
    if (!mask.none()) gradients.add(block, buffer, queries, from, mask, scale);
    wait_for_copies();
    __syncthreads();  // the next tile is complete, and all threads have finished with this one
  }
  block.template store<E>(static_cast<uint16_t*>(a.to.data) + at.query(s, block.warp_query()), s.stride(),
                          gradients.sums, score_scale(s));
}

}  // namespace aliquot::cuda
