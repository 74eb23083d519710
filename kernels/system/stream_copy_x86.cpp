#include <algorithm>
#include <cstdint>
#include <cstring>
#include <emmintrin.h>

#include "kernels/system/stream_copy.h"

namespace aliquot {
namespace {

constexpr size_t kLine = 64, kPage = 4096;
// Pages taken in turns, a line each, keep several of the memory's banks at work.
constexpr size_t kPagesAtOnce = 4;
constexpr size_t kAhead = 8 * kLine;
// Less than this is cheaper by way of the caches.
constexpr size_t kLeast = kPagesAtOnce * kPage;

void stream_line(std::byte* to, const std::byte* from) {
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

void stream_copy(std::byte* to, const std::byte* from, size_t count) {
  if (count < 2 * kLeast) {
    if (count > 0) std::memcpy(to, from, count);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;  // streamed stores are aligned
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kPagesAtOnce * kPage <= count; at += kPagesAtOnce * kPage) {
    for (size_t line = 0; line < kPage; line += kLine) {
      for (size_t page = 0; page < kPagesAtOnce; ++page) {
        const size_t place = at + page * kPage + line;
        _mm_prefetch(reinterpret_cast<const char*>(from + std::min(place + kAhead, count - 1)), _MM_HINT_T0);
        stream_line(to + place, from + place);
      }
    }
  }
  _mm_sfence();  // streamed stores pass later ones unless told
  std::memcpy(to + at, from + at, count - at);
}

}  // namespace aliquot
