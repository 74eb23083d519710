#pragma once
// The products of attention on tensor cores, by one warp each: see attention_tiles_cuda.h. Use it in *.cu files only.

#include "apps/models/cuda/attention_tiles_cuda.h"
#include "apps/models/cuda/tensor_core_cuda.h"

namespace aliquot::cuda {

inline constexpr float kLog2E = 1.44269504f;

/// A warp's fp32 matrix of kStrips x 16 rows.
template <int kStrips, int kColumns>
using WarpSums = Sums[kStrips][kColumns / 8];

/// row_in_strip() and column_of() return the position in a strip of element i of the strip's n-th Sums.
__device__ inline int row_in_strip(int i) { return warp_lane() / 4 + i / 2 * 8; }
__device__ inline int column_of(int n, int i) { return 8 * n + 2 * (warp_lane() % 4) + i % 2; }

/// The number of lanes that share a row of a product.
inline constexpr int kLanesOfRow = 4;

/// A warp's rows of a tile in shared memory, as the left operand of products. Each product loads them again.
template <int kWidth, int kStrips>
class RowsInTile {
 public:
  __device__ RowsInTile(const TileRow<kWidth>* tile, int row)
      : own_(&tile[row + warp_lane() % 16][warp_lane() / 16 * 8]) {}
  /// Returns the words of 16 columns of a strip.
  __device__ void load(LeftWords& words, int strip, int column) const {
    load_matrices(words, own_ + strip * kStripRows * (kWidth + 8) + column);
  }

 private:
  const uint16_t* own_;
};

/// Like RowsInTile, but loads all rows once and keeps them in registers.
template <int kWidth, int kStrips>
class RowsInRegisters {
 public:
  __device__ RowsInRegisters(const TileRow<kWidth>* tile, int row) {
    const RowsInTile<kWidth, kStrips> rows(tile, row);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int column = 0; column < kWidth; column += 16) rows.load(words_[strip][column / 16], strip, column);
    }
  }
  __device__ void load(LeftWords& words, int strip, int column) const {
    for (int i = 0; i < 4; ++i) words[i] = words_[strip][column / 16][i];
  }

 private:
  LeftWords words_[kStrips][kWidth / 16];
};

template <bool kKeep, int kWidth, int kStrips>
using LeftRows = std::conditional_t<kKeep, RowsInRegisters<kWidth, kStrips>, RowsInTile<kWidth, kStrips>>;

/// sums += left x right^T. Loads 16 x 16 elements of `right` at a time, as right operands of two products per strip.
template <class E, int kWidth, int kRows, int kStrips, class Left>
__device__ void add_products(WarpSums<kStrips, kRows>& sums, const Left& left, const TileRow<kWidth>* right) {
  const int lane = warp_lane();
  const uint16_t* own = &right[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8];
#pragma unroll
  for (int column = 0; column < kWidth; column += 16) {
    LeftWords of_left[kStrips];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) left.load(of_left[strip], strip, column);
#pragma unroll
    for (int n = 0; n < kRows; n += 16) {
      uint32_t of_right[4];
      load_matrices(of_right, own + n * (kWidth + 8) + column);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        multiply_add<E>(sums[strip][n / 8], of_left[strip], of_right[0], of_right[1]);
        multiply_add<E>(sums[strip][n / 8 + 1], of_left[strip], of_right[2], of_right[3]);
      }
    }
  }
}

/// sums += weights x right. Rounds the weights, which are the result of add_products() of the same warp.
template <class E, int kWidth, int kRows, int kStrips>
__device__ void add_weighted_rows(WarpSums<kStrips, kWidth>& sums, const WarpSums<kStrips, kRows>& weights,
                                  const TileRow<kWidth>* right) {
  const int lane = warp_lane();
  const uint16_t* own = &right[lane % 16][lane / 16 * 8];
#pragma unroll
  for (int k = 0; k < kRows; k += 16) {
    LeftWords of_left[kStrips];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = &weights[strip][k / 8 + i / 2][2 * (i % 2)];
        of_left[strip][i] = round_pair<E>(two[0], two[1]);
      }
    }
#pragma unroll
    for (int column = 0; column < kWidth; column += 16) {
      uint32_t of_right[4];
      load_matrices_transposed(of_right, own + k * (kWidth + 8) + column);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        multiply_add<E>(sums[strip][column / 8], of_left[strip], of_right[0], of_right[1]);
        multiply_add<E>(sums[strip][column / 8 + 1], of_left[strip], of_right[2], of_right[3]);
      }
    }
  }
}

/// Calls body(strip, n, i, row, column) for each element that a lane holds. `row` counts from the warp's first row.
template <int kStrips, int kColumns, class Body>
__device__ void for_sums(Body&& body) {
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(strip, n, i, strip * kStripRows + row_in_strip(i), column_of(n, i));
    }
  }
}

template <int kStrips, int kColumns>
__device__ void clear(WarpSums<kStrips, kColumns>& sums) {
  for_sums<kStrips, kColumns>([&](int strip, int n, int i, int, int) { sums[strip][n][i] = 0.0f; });
}

/// Sets the scores to -infinity for which attends(row, column) is false. `row` counts from the warp's first row.
template <int kStrips, int kColumns, class Attends>
__device__ void mask_scores(WarpSums<kStrips, kColumns>& scores, Attends&& attends) {
  for_sums<kStrips, kColumns>([&](int strip, int n, int i, int row, int column) {
    if (!attends(row, column)) scores[strip][n][i] = -INFINITY;
  });
}

/// The factors of a lane's rows, two for each strip.
template <int kStrips>
using RowFactors = float[kStrips][2];

template <int kStrips, int kColumns>
__device__ void scale_rows(WarpSums<kStrips, kColumns>& sums, const RowFactors<kStrips>& factors) {
  for_sums<kStrips, kColumns>([&](int strip, int n, int i, int, int) { sums[strip][n][i] *= factors[strip][i / 2]; });
}

/// Multiplies the rows of a warp by a factor, rounds them to E, and stores them in the warp's rows of the head. `tile`
/// has rows in shared memory that only this warp uses.
template <class E, int kWidth, int kStrips>
__device__ void store_sums(uint16_t* to, TileRow<kWidth>* tile, const HeadRowsView& at,
                           const WarpSums<kStrips, kWidth>& sums, float factor) {
  __syncwarp();  // all lanes have finished with the previous contents of the rows
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* two = &sums[strip][n][2 * half];
        const uint32_t pair = round_pair<E>(two[0] * factor, two[1] * factor);
        uint16_t* at_pair = &tile[strip * kStripRows + row_in_strip(2 * half)][column_of(n, 0)];
        store_pack(at_pair, Pack<uint16_t, 2>{static_cast<uint16_t>(pair), static_cast<uint16_t>(pair >> 16)});
      }
    }
  }
  store_rows<kWidth, kStrips * kStripRows>(to, tile, at);
}

}  // namespace aliquot::cuda
