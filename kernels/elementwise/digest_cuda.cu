// The CUDA kernels block_digests and digest_sum.
#include <algorithm>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_digest_cuda.h"
#include "kernels/elementwise/kernels_cuda.h"

namespace aliquot::cuda {
namespace {

constexpr int kWarpsPerBlock = kLaunchThreads / kLanesPerWarp;

__device__ uint64_t digest_of(const BlockDigests& what, int64_t block) {
  const int64_t at = block * what.block_bytes;
  return warp_block_digest(static_cast<const std::byte*>(what.data) + at, min(what.block_bytes, what.size_bytes - at));
}

__global__ void store_digests(const BlockDigests what, int64_t block_count) {
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const uint64_t digest = digest_of(what, block);
    if (warp_lane() != 0) continue;
    const uint64_t earlier = what.chains ? what.digests[block] * kDigestChainFactor : 0;
    what.digests[block] = earlier + digest;
  }
}

/// kDigestChainFactor to the power of `exponent`, modulo 2^64.
__device__ uint64_t chain_power(int64_t exponent) {
  uint64_t power = 1, square = kDigestChainFactor;
  for (; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) power *= square;
  }
  return power;
}

/// The digest of block b has the factor kDigestChainFactor^(block_count - 1 - b). Integer addition gives the same sum
/// in every order, so each thread block adds its own sum when it has finished.
__global__ void add_digests(unsigned long long* sum, const BlockDigests what, int64_t block_count) {
  uint64_t own = 0;
  int64_t last = -1;
  const uint64_t step = chain_power(launch_warp_stride());
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    own = own * step + digest_of(what, block);
    last = block;
  }
  if (last >= 0) own *= chain_power(block_count - 1 - last);
  auto* sums = shared_memory<uint64_t>();
  if (warp_lane() == 0) sums[threadIdx.x / kLanesPerWarp] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarpsPerBlock; ++w) own += sums[w];
  atomicAdd(sum, static_cast<unsigned long long>(own));
}

__global__ void set_sum(unsigned long long* sum) { *sum = 0; }

int64_t count_blocks(const BlockDigests& what) { return (what.size_bytes + what.block_bytes - 1) / what.block_bytes; }

}  // namespace

void block_digests(Stream& stream, const BlockDigests& what) {
  if (what.size_bytes <= 0) return;
  const int64_t block_count = count_blocks(what);
  start_kernel(stream, "block_digests", launch_grid(block_count * kLanesPerWarp), store_digests, what, block_count);
}

void digest_sum(Stream& stream, uint64_t* sum, const void* data, int64_t size_bytes) {
  auto* total = reinterpret_cast<unsigned long long*>(sum);
  start_kernel(stream, "digest_sum", {1, 1}, set_sum, total);
  if (size_bytes <= 0) return;
  const BlockDigests what{.data = data, .block_bytes = kMaxDigestBlockBytes, .size_bytes = size_bytes};
  const int64_t block_count = count_blocks(what);
  // Additions to pinned memory are slow, so there are few thread blocks.
  constexpr unsigned kMostThreadBlocks = 256;
  Grid grid = launch_grid(block_count * kLanesPerWarp);
  grid.blocks = std::min(grid.blocks, kMostThreadBlocks);
  grid.shared_bytes = kWarpsPerBlock * sizeof(uint64_t);
  start_kernel(stream, "digest_sum", grid, add_digests, total, what, block_count);
}

}  // namespace aliquot::cuda
