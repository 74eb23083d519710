#include "bench/optimizer_floor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aliquot {
namespace {

template <int kFp32Count, bool kCopy, bool kBytes>
void plain(const FloorStreams& s, int64_t begin, int64_t end) {
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    const auto gradient = static_cast<float>(s.gradient[i]);
    float last = gradient;
    for (int k = 0; k < kFp32Count; ++k) last = s.fp32[k][i] = s.fp32[k][i] * 0.99f + gradient;
    if constexpr (kBytes) {
      for (uint8_t* stream : s.bytes) stream[i] = static_cast<uint8_t>(stream[i] * 3 + 1);
    }
    if constexpr (kCopy) {
      s.copy[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, last) >> 16);
    } else if (s.high != nullptr) {
      s.high[i] = static_cast<uint16_t>(s.high[i] * 3 + 1);
      s.low[i] = static_cast<int16_t>(s.low[i] * 3 + 1);
    }
  }
}

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in GCC's header

constexpr int64_t kAhead = 256;

template <int kFp32Count, bool kCopy, bool kBytes>
[[gnu::always_inline]] inline void prefetch_ahead(const FloorStreams& s, int64_t i) {
  __builtin_prefetch(s.gradient + i);
  for (int k = 0; k < kFp32Count; ++k) {
    __builtin_prefetch(s.fp32[k] + i);
    __builtin_prefetch(s.fp32[k] + i + 16);
  }
  if constexpr (kBytes) {
    for (const uint8_t* stream : s.bytes) __builtin_prefetch(stream + i);
  }
  if (!kCopy && s.high != nullptr) {
    __builtin_prefetch(s.high + i);
    __builtin_prefetch(s.low + i);
  }
}

/// Processes 32 elements at a time, so that the bf16 copy is written in full cache lines.
template <int kFp32Count, bool kCopy, bool kBytes>
__attribute__((target("avx512f,avx512bw,avx512vl"))) void avx512(const FloorStreams& s, int64_t begin, int64_t end) {
  const __m512 factor = _mm512_set1_ps(0.99f);
  for (int64_t i = begin; i < end; i += 32) {
    prefetch_ahead<kFp32Count, kCopy, kBytes>(s, i + kAhead);
    const __m512i raw = _mm512_loadu_si512(s.gradient + i);
    const __m512 g0 = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16)), g1 = _mm512_castsi512_ps(raw);
    __m512 last0 = g0, last1 = g1;
    for (int k = 0; k < kFp32Count; ++k) {
      float* p = s.fp32[k] + i;
      last0 = _mm512_fmadd_ps(_mm512_loadu_ps(p), factor, g0);
      last1 = _mm512_fmadd_ps(_mm512_loadu_ps(p + 16), factor, g1);
      _mm512_storeu_ps(p, last0);
      _mm512_storeu_ps(p + 16, last1);
    }
    if constexpr (kBytes) {
      for (uint8_t* stream : s.bytes) {
        auto* p = reinterpret_cast<__m256i*>(stream + i);
        _mm256_storeu_si256(p, _mm256_add_epi8(_mm256_loadu_si256(p), _mm512_castsi512_si256(raw)));
      }
    }
    if constexpr (kCopy) {
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(last0), 16);
      const __m512i both = _mm512_mask_mov_epi16(low, 0xaaaaaaaau, _mm512_castps_si512(last1));
      _mm512_stream_si512(reinterpret_cast<__m512i*>(s.copy + i), both);
    } else if (s.high != nullptr) {
      _mm512_storeu_si512(s.high + i, _mm512_add_epi16(_mm512_loadu_si512(s.high + i), raw));
      _mm512_storeu_si512(s.low + i, _mm512_add_epi16(_mm512_loadu_si512(s.low + i), raw));
    }
  }
  _mm_sfence();
}
#endif

template <int kFp32Count, bool kCopy, bool kBytes = false>
void widest(const FloorStreams& s, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    avx512<kFp32Count, kCopy, kBytes>(s, begin, end);
    return;
  }
#endif
  plain<kFp32Count, kCopy, kBytes>(s, begin, end);
}

}  // namespace

void run_floor(const FloorStreams& s, int64_t begin, int64_t end) {
  const bool copy = s.copy != nullptr;
  if (s.bytes[0] != nullptr) return widest<1, true, true>(s, begin, end);
  switch (s.fp32_count) {
    case 0: widest<0, false>(s, begin, end); return;
    case 1: copy ? widest<1, true>(s, begin, end) : widest<1, false>(s, begin, end); return;
    case 2: copy ? widest<2, true>(s, begin, end) : widest<2, false>(s, begin, end); return;
    default: copy ? widest<3, true>(s, begin, end) : widest<3, false>(s, begin, end); return;
  }
}

}  // namespace aliquot
