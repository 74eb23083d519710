#pragma once
// The constants of digests of blocks (HostLoops::block_digests, Kernels::block_digests). This file defines no
// functions, so files that are compiled with AVX flags may include it.

#include <cstdint>

namespace aliquot {

/// The longest block with a digest: 256 elements of 4 bytes.
inline constexpr int64_t kMaxDigestBlockBytes = 1024;
inline constexpr int kDigestLanes = 16;
/// The factor of sums that depend on the order of their values: sum = sum * kDigestChainFactor + value. It is odd, so a
/// change of one value always changes the sum.
inline constexpr uint64_t kDigestChainFactor = 0x9E3779B97F4A7C15u;

struct DigestFactors {
  /// Odd numbers. Word i of a block is multiplied by words[i] modulo 2^32, and added to lane i % kDigestLanes.
  alignas(64) uint32_t words[kMaxDigestBlockBytes / 4];
  /// Odd numbers. The digest is the sum of all lanes, each multiplied by its number, modulo 2^64.
  alignas(64) uint32_t lanes[kDigestLanes];
};

/// A change within one word changes the digest for certain: an odd factor times a difference that is not 0 modulo 2^32
/// is not 0, and a difference below 2^32 times a factor below 2^32 is not 0 modulo 2^64. Not inline: files that are
/// compiled with AVX flags must not define weak symbols.
constexpr DigestFactors kDigestFactors = [] {
  DigestFactors factors{};
  uint64_t state = 0x9E3779B97F4A7C15u;
  const auto next = [&state] {
    uint64_t mixed = state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>(mixed >> 32) | 1u;
  };
  for (uint32_t& factor : factors.words) factor = next();
  for (uint32_t& factor : factors.lanes) factor = next();
  return factors;
}();

}  // namespace aliquot
