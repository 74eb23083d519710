#include <algorithm>
#include <cstdint>
#include <cstring>
#include <emmintrin.h>

#include "kernels/system/non_temporal_copy.h"

namespace aliquot {
namespace {

constexpr size_t kCacheLineBytes = 64, kPageBytes = 4096;
// Copies a cache line of each of these pages in turn, which keeps several memory banks busy.
constexpr size_t kPagesAtOnce = 4;
constexpr size_t kPrefetchDistanceBytes = 8 * kCacheLineBytes;
// The number of bytes that the loop copies in one iteration. For less than twice as many bytes, memcpy() is faster.
constexpr size_t kMinBytes = kPagesAtOnce * kPageBytes;

void copy_cache_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
                d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

}  // namespace

void non_temporal_copy(std::byte* to, const std::byte* from, size_t count) {
  if (count < 2 * kMinBytes) {
    if (count > 0) std::memcpy(to, from, count);
    return;
  }
  // Non-temporal stores need an aligned destination.
  const size_t head = (kCacheLineBytes - reinterpret_cast<uintptr_t>(to) % kCacheLineBytes) % kCacheLineBytes;
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kPagesAtOnce * kPageBytes <= count; at += kPagesAtOnce * kPageBytes) {
    for (size_t line = 0; line < kPageBytes; line += kCacheLineBytes) {
      for (size_t page = 0; page < kPagesAtOnce; ++page) {
        const size_t offset = at + page * kPageBytes + line;
        _mm_prefetch(reinterpret_cast<const char*>(from + std::min(offset + kPrefetchDistanceBytes, count - 1)),
                     _MM_HINT_T0);
        copy_cache_line(to + offset, from + offset);
      }
    }
  }
  _mm_sfence();  // orders the non-temporal stores before later stores
  std::memcpy(to + at, from + at, count - at);
}

}  // namespace aliquot
