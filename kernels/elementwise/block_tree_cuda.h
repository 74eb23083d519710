#pragma once
// Functions for kernels in which one warp processes one block of 256 elements. For *.cu files.

#include <cstdint>

#include "kernels/device/launch_cuda.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// The elements of a warp's block that one lane holds: elements 4 * lane to 4 * lane + 3 (low), and the four elements
/// 128 positions after them (high). One instruction loads each pack. The first addition of the halving tree
/// (Kernels::block_squares) adds high to low, so it needs no data from other lanes.
struct BlockPart {
  Pack<float, kPackElements> low, high;
};
static_assert(2 * 32 * kPackElements == kBlockElements);

inline constexpr int kLanesPerWarp = 32;
inline constexpr int64_t kHalfBlockElements = kBlockElements / 2;

__device__ inline int64_t launch_warp() { return launch_thread() / kLanesPerWarp; }
__device__ inline int64_t launch_warp_stride() { return launch_stride() / kLanesPerWarp; }
__device__ inline int warp_lane() { return static_cast<int>(threadIdx.x) % kLanesPerWarp; }

/// Returns the squares of the first `remaining` elements of the pack, and zeros for the rest.
__device__ inline Pack<float, kPackElements> squares(const Pack<float, kPackElements>& x, int64_t remaining) {
  Pack<float, kPackElements> result;
  for (int k = 0; k < kPackElements; ++k) result.lane[k] = k < remaining ? x.lane[k] * x.lane[k] : 0.0f;
  return result;
}

/// Returns the sum of the block's squares by a halving tree, but only to lane 0. All lanes of the warp must call this.
/// `first` is the index of the lane's low elements. Elements with index >= `count` count as zero.
__device__ inline float block_square_sum(const BlockPart& part, int64_t first, int64_t count) {
  Pack<float, kPackElements> v = squares(part.low, count - first);
  const Pack<float, kPackElements> high = squares(part.high, count - first - kHalfBlockElements);
  // The halving tree first adds elements that are 128 apart, then 64, 32, 16, 8 and 4 apart, and last 2 and 1 apart.
  for (int k = 0; k < kPackElements; ++k) v.lane[k] += high.lane[k];
  for (int distance = kLanesPerWarp / 2; distance > 0; distance /= 2) {
    for (int k = 0; k < kPackElements; ++k) v.lane[k] += __shfl_down_sync(0xffffffffu, v.lane[k], distance);
  }
  return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]);
}

}  // namespace aliquot
