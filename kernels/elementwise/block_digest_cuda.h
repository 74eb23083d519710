#pragma once
// The digest of a block of bytes, computed by one warp. For *.cu files.

#include <cstddef>
#include <cstdint>

#include "kernels/elementwise/block_digest.h"
#include "kernels/elementwise/block_tree_cuda.h"

namespace aliquot {

static __device__ const DigestFactors gpu_digest_factors = kDigestFactors;

/// Returns word `index` of the block. Bytes after the end of the block are zeros. `aligned`: whether the block is
/// aligned to words.
static __device__ uint32_t digest_word(const std::byte* block, int64_t index, int64_t size_bytes, bool aligned) {
  constexpr int64_t kWordBytes = sizeof(uint32_t);
  const std::byte* at = block + index * kWordBytes;
  const int64_t rest = size_bytes - index * kWordBytes;
  if (aligned && rest >= kWordBytes) return *reinterpret_cast<const uint32_t*>(at);
  uint32_t word = 0;
  for (int64_t b = 0; b < kWordBytes && b < rest; ++b) word |= static_cast<uint32_t>(at[b]) << (8 * b);
  return word;
}

/// Returns the digest of a block of at most kMaxDigestBlockBytes, to all lanes. All lanes of the warp must call this
/// with the same arguments.
static __device__ uint64_t warp_block_digest(const std::byte* block, int64_t size_bytes) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  const bool aligned = reinterpret_cast<uintptr_t>(block) % sizeof(uint32_t) == 0;
  uint32_t sum = 0;
  for (int64_t i = warp_lane(); i * static_cast<int64_t>(sizeof(uint32_t)) < size_bytes; i += kLanesPerWarp)
    sum += digest_word(block, i, size_bytes, aligned) * gpu_digest_factors.words[i];
  // Two lanes of the warp have words of the same lane of the digest.
  static_assert(kLanesPerWarp == 2 * kDigestLanes);
  sum += __shfl_xor_sync(kAllLanes, sum, kDigestLanes);
  uint64_t digest = uint64_t{sum} * gpu_digest_factors.lanes[warp_lane() % kDigestLanes];
  for (int apart = kDigestLanes / 2; apart > 0; apart /= 2) digest += __shfl_xor_sync(kAllLanes, digest, apart);
  return digest;
}

}  // namespace aliquot
