#pragma once
// Attention on tensor cores, for 16-bit arrays. A thread block of four warps computes 64 queries (or keys) of one head
// and loads the keys (or queries) into shared memory tile by tile. Scores stay in registers. Backward has one kernel
// for the gradients of queries and one for those of keys and values, so that one block computes each sum, in a fixed
// order. Use it in *.cu files only.

#include "apps/models/cuda/attention_place_cuda.h"
#include "apps/models/cuda/tensor_core_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

inline constexpr int kTileRows = 64, kTileThreads = 128, kWarpRows = 16;
static_assert(kTileThreads / kLanesPerWarp * kWarpRows == kTileRows);
inline constexpr float kLog2E = 1.44269504f;

/// A row in shared memory. The padding of eight elements puts eight consecutive rows in different banks.
template <int kWidth>
using TileRow = uint16_t[kWidth + 8];

/// Layout of a tile's rows in global memory: `count` valid rows of `width` elements, `stride` elements apart.
struct HeadRowsView {
  int64_t stride;
  int count, width;
  bool aligned;  // every row begins at a multiple of eight elements
};

/// Loads the valid elements of a tile and sets its other elements to zero.
template <class E, int kWidth, int kRows>
__device__ void load_tile(TileRow<kWidth>* to, const uint16_t* from, const HeadRowsView& at) {
  constexpr int kPacks = kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kTileThreads) {
    const int row = i / kPacks, column = i % kPacks * 8;
    Pack<uint16_t, 8> pack = {};
    if (row < at.count) {
      const uint16_t* place = from + row * at.stride + column;
      if (at.aligned && column + 8 <= at.width) {
        pack = load_pack<8>(place);
      } else {
        for (int k = 0; k < 8 && column + k < at.width; ++k) pack.lane[k] = place[k];
      }
    }
    store_pack(&to[row][column], pack);
  }
}

/// Loads the valid fp32 elements of a tile, rounds them to E, and sets the other elements of the tile to zero.
template <class E, int kWidth, int kRows>
__device__ void load_tile(TileRow<kWidth>* to, const float* from, const HeadRowsView& at) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kTileThreads) {
    const int row = i / kWidth, column = i % kWidth;
    const bool exists = row < at.count && column < at.width;
    to[row][column] = exists ? E::store(from[row * at.stride + column]) : uint16_t{0};
  }
}

/// Loads the 16 x 16 matrix at (`row`, `column`) of a tile as the left operand of a product.
template <int kWidth>
__device__ void load_left(LeftWords& words, const TileRow<kWidth>* tile, int row, int column) {
  const int lane = warp_lane();
  load_matrices(words, &tile[row + lane % 16][column + lane / 16 * 8]);
}

/// Loads 16 x 16 elements of the transposed tile as the right operands of two products. Words 0 and 1 hold the first
/// eight rows of the tile, words 2 and 3 the others.
template <int kWidth>
__device__ void load_right_by_rows(uint32_t (&words)[4], const TileRow<kWidth>* tile, int row, int column) {
  const int lane = warp_lane();
  load_matrices(words, &tile[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
}

/// Loads 16 x 16 elements of the tile, not transposed, as the right operands of two products. Words 0 and 1 hold the
/// first eight columns of the tile, words 2 and 3 the others.
template <int kWidth>
__device__ void load_right_by_columns(uint32_t (&words)[4], const TileRow<kWidth>* tile, int row, int column) {
  const int lane = warp_lane();
  load_matrices_transposed(words, &tile[row + lane % 8 + lane / 8 % 2 * 8][column + lane / 16 * 8]);
}

/// sums = l x right^T, where l is the warp's 16 rows of `left` from `row` on.
template <class E, int kWidth, int kRows>
__device__ void multiply_rows(Sums (&sums)[kRows / 8], const TileRow<kWidth>* left, int row,
                              const TileRow<kWidth>* right) {
  for (Sums& sum : sums) sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
#pragma unroll
  for (int column = 0; column < kWidth; column += 16) {
    LeftWords of_left;
    load_left<kWidth>(of_left, left, row, column);
#pragma unroll
    for (int n = 0; n < kRows; n += 16) {
      uint32_t of_right[4];
      load_right_by_rows<kWidth>(of_right, right, n, column);
      multiply_add<E>(sums[n / 8], of_left, of_right[0], of_right[1]);
      multiply_add<E>(sums[n / 8 + 1], of_left, of_right[2], of_right[3]);
    }
  }
}

template <class E>
__device__ uint32_t pair_of(float low, float high) {
  return static_cast<uint32_t>(E::store(low)) | static_cast<uint32_t>(E::store(high)) << 16;
}

/// sums += weights x `right`. `weights` is the result of multiply_rows() of the same warp.
template <class E, int kWidth, int kRows>
__device__ void add_weighted_rows(Sums (&sums)[kWidth / 8], const Sums (&weights)[kRows / 8],
                                  const TileRow<kWidth>* right) {
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
    const Sums &first = weights[k / 8], &second = weights[k / 8 + 1];
    const LeftWords of_left = {pair_of<E>(first[0], first[1]), pair_of<E>(first[2], first[3]),
                               pair_of<E>(second[0], second[1]), pair_of<E>(second[2], second[3])};
#pragma unroll
    for (int column = 0; column < kWidth; column += 16) {
      uint32_t of_right[4];
      load_right_by_columns<kWidth>(of_right, right, k, column);
      multiply_add<E>(sums[column / 8], of_left, of_right[0], of_right[1]);
      multiply_add<E>(sums[column / 8 + 1], of_left, of_right[2], of_right[3]);
    }
  }
}

/// row_of() and column_of() return the position in the tile of element i of the n-th Sums of a warp's product.
__device__ inline int row_of(int i) {
  return static_cast<int>(threadIdx.x) / kLanesPerWarp * kWarpRows + warp_lane() / 4 + i / 2 * 8;
}
__device__ inline int column_of(int n, int i) { return 8 * n + 2 * (warp_lane() % 4) + i % 2; }

/// The number of lanes that share a row of a product.
inline constexpr int kRowLanes = 4;

/// Multiplies each of a warp's 16 rows by its factor and stores them in the rows of a head.
template <class E, int kWidth>
__device__ void store_rows(uint16_t* to, const HeadRowsView& at, const Sums (&sums)[kWidth / 8],
                           const float (&factor)[2]) {
  for (int n = 0; n < kWidth / 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_of(i), column = column_of(n, i);
      if (row < at.count && column < at.width) to[row * at.stride + column] = E::store(sums[n][i] * factor[i / 2]);
    }
  }
}

/// The first key of the first tile with a key to which the queries from `first_query` on attend.
__device__ inline int64_t first_key_tile(const AttentionShape& s, int64_t first_query) {
  return s.first_key(first_query) / kTileRows * kTileRows;
}

/// Which scores of a tile of kQueries queries and kKeys keys count.
template <int kQueries, int kKeys>
struct TileMask {
  int apart, window;  // apart: first query minus first key
  bool all;           // no score is masked

  __device__ TileMask(const AttentionShape& s, int64_t first_query, int64_t first_key)
      : apart(static_cast<int>(first_query - first_key)),
        window(s.window < s.sequence ? static_cast<int>(s.window) : 0),
        all(apart >= kKeys - 1 && (window == 0 || apart + kQueries - 1 < window)) {}
  /// Whether the query attends to the key. Both are indices in the tile.
  __device__ bool attends(int query, int key) const {
    const int before = query + apart - key;
    return all || (before >= 0 && (window == 0 || before < window));
  }
};

__device__ inline int valid_rows(int64_t first, int64_t sequence, int most) {
  const int64_t left = sequence - first;
  return static_cast<int>(left < most ? left : most);
}

}  // namespace aliquot::cuda
