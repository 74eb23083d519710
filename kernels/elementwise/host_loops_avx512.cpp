// Loops with AVX-512 (F, BW, VL, DQ). This file is compiled for these instruction sets, so it uses only intrinsics and
// the code that host_loops_vector.h permits. It does not use AVX512_BF16, whose conversion flushes subnormals to zero.

#include <immintrin.h>

#include "kernels/elementwise/host_loops_vector.h"
#include "kernels/elementwise/host_sum_vector.h"

namespace aliquot {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int64_t kLanes = 16;

  static __m256i raw16(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw16(p)), 16)); }
  static F load(const Fp16* p) { return _mm512_cvtph_ps(raw16(p)); }

  static __m256i to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
  }
  static __m256i to_fp16(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(Bf16* p, F x) { store_bits<false>(p, to_bf16(x)); }
  static void store(Fp16* p, F x) { store_bits<false>(p, to_fp16(x)); }
  static void stream(float* p, F x) { _mm512_stream_ps(p, x); }
  static void stream(Bf16* p, F x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }
  static void stream(Fp16* p, F x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_fp16(x)); }
  static void fence() { _mm_sfence(); }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }

  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }

  static double sum_lanes(F x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return static_cast<double>(_mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two))));
  }

  static __m256i high(F x) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  static __m256i low(F x) { return _mm512_cvtepi32_epi16(_mm512_castps_si512(x)); }
  template <bool kNonTemporal>
  static void store_bits(void* p, __m256i x) {
    if constexpr (kNonTemporal) {
      _mm256_stream_si256(static_cast<__m256i*>(p), x);
    } else {
      _mm256_storeu_si256(static_cast<__m256i*>(p), x);
    }
  }
  static F merge(const uint16_t* high, const int16_t* low) {
    const __m512i top = _mm512_slli_epi32(_mm512_cvtepu16_epi32(raw16(high)), 16);
    return _mm512_castsi512_ps(_mm512_add_epi32(top, _mm512_cvtepi16_epi32(raw16(low))));
  }

  static bool any_nonfinite(const float* p) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(p), exponent), exponent) != 0;
  }
  static bool any_exponent16(const uint16_t* p, int exponent_bits) {
    const __m512i exponent = _mm512_set1_epi16(static_cast<int16_t>(exponent_bits));
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(p), exponent), exponent) != 0;
  }

  static uint64_t digest(const char* block, int64_t size_bytes) {
    __m512i lanes = _mm512_setzero_si512();
    for (int64_t i = 0; i < size_bytes; i += 64) {
      const __m512i factors = _mm512_load_si512(kDigestFactors.words + i / 4);
      lanes = _mm512_add_epi32(lanes, _mm512_mullo_epi32(_mm512_loadu_si512(block + i), factors));
    }
    const __m512i factors = _mm512_load_si512(kDigestFactors.lanes);
    const __m512i even = _mm512_mul_epu32(lanes, factors);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(lanes, 32), _mm512_srli_epi64(factors, 32));
    // _mm512_reduce_add_epi64() adds signed numbers, whose overflow is undefined.
    const __m512i all = _mm512_add_epi64(even, odd);
    const __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    const __m128i rest = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(rest)) + static_cast<uint64_t>(_mm_extract_epi64(rest, 1));
  }

  // Stores copies of `pattern` from `to` on, one full register at a time. `to` must be aligned to a register. Does
  // not store a remainder shorter than a register. Returns the number of bytes stored.
  static int64_t fill_bytes(unsigned char* to, uint64_t pattern, int64_t size_bytes, bool non_temporal) {
    const __m512i x = _mm512_set1_epi64(static_cast<int64_t>(pattern));
    int64_t i = 0;
    if (non_temporal) {
      for (; i + 64 <= size_bytes; i += 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), x);
      fence();
    }
    for (; i + 64 <= size_bytes; i += 64) _mm512_store_si512(to + i, x);
    return i;
  }
};

}  // namespace

const HostLoops& avx512_loops() { return kVectorLoops<Avx512>; }

}  // namespace aliquot
