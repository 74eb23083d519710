#include <array>
#include <cstring>
#include <immintrin.h>

#include "checkpoint/hash/crc32c_polynomial.h"
#include "checkpoint/hash/hash_hardware.h"
#include "checkpoint/hash/sha256_rounds.h"

namespace aliquot {
namespace {

// The crc32 instruction has a latency of three cycles and a throughput of one per cycle, so three independent streams
// (lanes) are interleaved. Their CRCs are combined after every 3 * kLaneBytes bytes.
constexpr size_t kLaneBytes = 4096;
const Crc32cTables kShiftLane = crc32c_multiply_tables(crc32c_shift(kLaneBytes));
const Crc32cTables kShiftTwoLanes = crc32c_multiply_tables(crc32c_shift(2 * kLaneBytes));

uint64_t load64(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

[[gnu::target("sse4.2")]] uint32_t crc32c_three_lanes(uint32_t state, const std::byte* bytes) {
  uint64_t a = state, b = 0, c = 0;
  for (size_t i = 0; i < kLaneBytes; i += 8) {
    a = _mm_crc32_u64(a, load64(bytes + i));
    b = _mm_crc32_u64(b, load64(bytes + kLaneBytes + i));
    c = _mm_crc32_u64(c, load64(bytes + 2 * kLaneBytes + i));
  }
  return crc32c_multiply(kShiftTwoLanes, static_cast<uint32_t>(a)) ^
         crc32c_multiply(kShiftLane, static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
}

[[gnu::target("sse4.2")]] uint32_t crc32c_sse42(uint32_t state, const std::byte* bytes, size_t count) {
  for (; count >= 3 * kLaneBytes; bytes += 3 * kLaneBytes, count -= 3 * kLaneBytes)
    state = crc32c_three_lanes(state, bytes);
  uint64_t wide = state;
  for (; count >= 8; bytes += 8, count -= 8) wide = _mm_crc32_u64(wide, load64(bytes));
  state = static_cast<uint32_t>(wide);
  for (; count > 0; ++bytes, --count) state = _mm_crc32_u8(state, static_cast<uint8_t>(*bytes));
  return state;
}

[[gnu::target("sha,sse4.1")]] void sha256_ni(uint32_t state[8], const std::byte* blocks, size_t block_count) {
  // The instructions expect the state words as (A B E F) and (C D G H), and the message words in big-endian order.
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; block_count > 0; --block_count, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i message[4];
    for (int group = 0; group < 16; ++group) {
      __m128i& words = message[group % 4];
      if (group < 4) {
        words = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * group)), swap);
      } else {
        const __m128i &second = message[(group + 1) % 4], &third = message[(group + 2) % 4],
                      &last = message[(group + 3) % 4];
        words = _mm_add_epi32(_mm_sha256msg1_epu32(words, second), _mm_alignr_epi8(last, third, 4));
        words = _mm_sha256msg2_epu32(words, last);
      }
      const __m128i sum =
          _mm_add_epi32(words, _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Round.data() + 4 * group)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);   // reverses F E B A to A B E F
  high = _mm_shuffle_epi32(cdgh, 0xb1);  // swaps pairs: G H C D
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}

}  // namespace

Crc32cUpdate crc32c_hardware() { return __builtin_cpu_supports("sse4.2") ? crc32c_sse42 : nullptr; }

Sha256Update sha256_hardware() {
  unsigned a = 0, b = 0, c = 0,
           d = 0;  // GCC before 13 does not support __builtin_cpu_supports("sha"), so cpuid is read here
  constexpr unsigned kShaBit = 1u << 29;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0));
  if (a < 7 || !__builtin_cpu_supports("sse4.1")) return nullptr;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
  return (b & kShaBit) != 0 ? sha256_ni : nullptr;
}

}  // namespace aliquot
