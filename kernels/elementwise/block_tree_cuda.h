#pragma once
// A warp as the owner of one block of 256 elements. For *.cu files.

#include <cstdint>

#include "kernels/device/launch_cuda.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// What a lane holds of its warp's block: elements 4 * lane to 4 * lane + 3 and the four that lie 128 behind them, so both
/// are one load, and the tree's first addition needs no neighbour.
struct BlockPart {
  Pack<float, kPackElements> low, high;
};
static_assert(2 * 32 * kPackElements == kBlockElements);

inline constexpr int kLanesPerWarp = 32;
inline constexpr int64_t kHalfBlockElements = kBlockElements / 2;

__device__ inline int64_t launch_warp() { return launch_thread() / kLanesPerWarp; }
__device__ inline int64_t launch_warp_stride() { return launch_stride() / kLanesPerWarp; }
__device__ inline int warp_lane() { return static_cast<int>(threadIdx.x) % kLanesPerWarp; }

/// The square of each element, zero from `remaining` elements of the pack on.
__device__ inline Pack<float, kPackElements> squares(const Pack<float, kPackElements>& x, int64_t remaining) {
  Pack<float, kPackElements> result;
  for (int k = 0; k < kPackElements; ++k) result.lane[k] = k < remaining ? x.lane[k] * x.lane[k] : 0.0f;
  return result;
}

/// The halving tree over the block's squares; right in lane 0. All lanes of the warp call it. `first`: the index of the
/// lane's low elements; from `count` on, elements count as zero.
__device__ inline float block_square_sum(const BlockPart& part, int64_t first, int64_t count) {
  Pack<float, kPackElements> v = squares(part.low, count - first);
  const Pack<float, kPackElements> behind = squares(part.high, count - first - kHalfBlockElements);
  for (int k = 0; k < kPackElements; ++k) v.lane[k] += behind.lane[k];   // 128
  for (int distance = kLanesPerWarp / 2; distance > 0; distance /= 2) {  // 64, 32, 16, 8, 4
    for (int k = 0; k < kPackElements; ++k) v.lane[k] += __shfl_down_sync(0xffffffffu, v.lane[k], distance);
  }
  return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]);  // 2, 1
}

}  // namespace aliquot
