// The CUDA kernel sum_runs. A thread block sums one run at a time. It sums chunks of the run one after another, and
// each warp sums 256 leaves of a chunk.
//
// Leaves that do not exist count as -0. This does not change a sum, although the tree leaves them out. When sums are
// rounded to nearest, x + (-0) has the bits of x for every x that is not a NaN, also for +0, -0 and infinity. It is a
// NaN if x is one. In contrast, +0 as a leaf would change a sum of -0.
#include <algorithm>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/kernels_cuda.h"

namespace aliquot::cuda {
namespace {

constexpr int kLaneLeaves = 8;
constexpr int kWarpLeaves = kLaneLeaves * kLanesPerWarp;
constexpr int kWarpsPerBlock = kLaunchThreads / kLanesPerWarp;
constexpr int64_t kChunkLeaves = int64_t{kWarpsPerBlock} * kWarpLeaves;
constexpr int kMostLevels = 64;    // of chunks in a run
constexpr double kMissing = -0.0;  // a leaf that does not exist

__device__ double lane_sum(double value, int distance) { return value + __shfl_xor_sync(0xffffffffu, value, distance); }

/// Returns the sum of the first min(count, kWarpLeaves) leaves to all lanes. Lane l loads leaves l, 32 + l, 64 + l, ...
/// An addition over a distance of 2^k lanes adds sums of 2^k adjacent leaves. The first three additions also divide the
/// groups of 32 leaves between the lanes: afterwards, lane l holds a sum of group l % 8.
__device__ double warp_sum(const double* leaves, int64_t count) {
  const int lane = warp_lane();
  double v[kLaneLeaves];
#pragma unroll
  for (int g = 0; g < kLaneLeaves; ++g) {
    const int leaf = g * kLanesPerWarp + lane;
    v[g] = leaf < count ? leaves[leaf] : kMissing;
  }
#pragma unroll
  for (int groups = kLaneLeaves, distance = 1; groups > 1; groups /= 2, distance *= 2) {
    const bool keeps_right = (lane & distance) != 0;
#pragma unroll
    for (int g = 0; g < groups / 2; ++g) {
      const double kept = keeps_right ? v[2 * g + 1] : v[2 * g], sent = keeps_right ? v[2 * g] : v[2 * g + 1];
      v[g] = kept + __shfl_xor_sync(0xffffffffu, sent, distance);
    }
  }
  double sum = v[0];
  for (int distance = kLaneLeaves; distance < kLanesPerWarp; distance *= 2) sum = lane_sum(sum, distance);
  for (int distance = 1; distance < kLaneLeaves; distance *= 2) sum = lane_sum(sum, distance);
  return sum;
}

/// Returns the sum of the first min(count, kChunkLeaves) leaves, but only to the first warp. All threads of the block
/// must call this. `warp_sums` is shared memory for kWarpsPerBlock values.
__device__ double chunk_sum(const double* leaves, int64_t count, double* warp_sums) {
  const int warp = static_cast<int>(threadIdx.x) / kLanesPerWarp;
  const int64_t first = int64_t{warp} * kWarpLeaves;
  const double own = first < count ? warp_sum(leaves + first, count - first) : kMissing;
  if (warp_lane() == 0) warp_sums[warp] = own;
  __syncthreads();
  double sum = kMissing;
  if (warp == 0) {
    sum = warp_sums[warp_lane() % kWarpsPerBlock];
    for (int distance = 1; distance < kWarpsPerBlock; distance *= 2) sum = lane_sum(sum, distance);
  }
  __syncthreads();  // the next chunk overwrites the sums
  return sum;
}

/// `pending` is a binary counter whose carries are additions. After c chunks, it has the sum of a subtree of 2^k chunks
/// for each bit k of c, the largest subtree first.
__global__ void add_runs(const RunSums what) {
  auto* warp_sums = shared_memory<double>();
  double* pending = warp_sums + kWarpsPerBlock;  // only thread 0 accesses it
  for (int64_t r = blockIdx.x; r < what.run_count; r += gridDim.x) {
    const LeafRun run = what.runs[r];
    int pending_count = 0;
    for (int64_t chunk = 0; chunk * kChunkLeaves < run.count; ++chunk) {
      const int64_t done = chunk * kChunkLeaves;
      double sum = chunk_sum(what.values + run.first + done, run.count - done, warp_sums);
      if (threadIdx.x != 0) continue;
      for (int64_t carry = chunk; carry % 2 == 1; carry /= 2) sum = pending[--pending_count] + sum;
      pending[pending_count++] = sum;
    }
    if (threadIdx.x != 0) continue;
    double sum = pending[--pending_count];
    while (pending_count > 0) sum = pending[--pending_count] + sum;
    what.values[run.sum] = sum;
  }
}

}  // namespace

void sum_runs(Stream& stream, const RunSums& what) {
  if (what.run_count <= 0) return;
  constexpr int64_t kMostThreadBlocks = 1 << 16;
  const auto blocks = static_cast<unsigned>(std::min(what.run_count, kMostThreadBlocks));
  constexpr unsigned kSharedBytes = (kWarpsPerBlock + kMostLevels) * sizeof(double);
  start_kernel(stream, "sum_runs", {blocks, kLaunchThreads, kSharedBytes}, add_runs, what);
}

}  // namespace aliquot::cuda
