// Loops with AVX2 and F16C. This file is compiled for these instruction sets, so it uses only intrinsics and the code
// that host_loops_vector.h permits.

#include <immintrin.h>

#include "kernels/elementwise/host_loops_vector.h"
#include "kernels/elementwise/host_sum_vector.h"

namespace aliquot {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int64_t kLanes = 8;

  static __m128i raw16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const Bf16* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw16(p)), 16)); }
  static F load(const Fp16* p) { return _mm256_cvtph_ps(raw16(p)); }

  // Returns the low 16 bits of each of the eight 32-bit words, in order. The high 16 bits must be zero, because
  // _mm256_packus_epi32 saturates.
  static __m128i pack(__m256i words) {
    const __m256i packed = _mm256_packus_epi32(words, words);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }

  static __m128i to_bf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return pack(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16));
  }
  static __m128i to_fp16(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store(Bf16* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(x)); }
  static void store(Fp16* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_fp16(x)); }
  static void stream(float* p, F x) { _mm256_stream_ps(p, x); }
  static void stream(Bf16* p, F x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_bf16(x)); }
  static void stream(Fp16* p, F x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_fp16(x)); }
  static void fence() { _mm_sfence(); }
  static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }

  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }

  static double sum_lanes(F x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return static_cast<double>(_mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two))));
  }

  static __m128i high(F x) {
    const __m256i rounded = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
    return pack(_mm256_srli_epi32(rounded, 16));
  }
  static __m128i low(F x) { return pack(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff))); }
  template <bool kNonTemporal>
  static void store_bits(void* p, __m128i x) {
    if constexpr (kNonTemporal) {
      _mm_stream_si128(static_cast<__m128i*>(p), x);
    } else {
      _mm_storeu_si128(static_cast<__m128i*>(p), x);
    }
  }
  static F merge(const uint16_t* high, const int16_t* low) {
    const __m256i top = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw16(high)), 16);
    return _mm256_castsi256_ps(_mm256_add_epi32(top, _mm256_cvtepi16_epi32(raw16(low))));
  }

  static uint64_t digest(const char* block, int64_t size_bytes) {
    __m256i lanes[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < size_bytes; i += 64) {
      for (int64_t half = 0; half < 2; ++half) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + i + 32 * half));
        lanes[half] = _mm256_add_epi32(
            lanes[half], _mm256_mullo_epi32(words, load_factors(kDigestFactors.words + i / 4 + 8 * half)));
      }
    }
    __m256i sums = _mm256_setzero_si256();
    for (int64_t half = 0; half < 2; ++half) {
      const __m256i factors = load_factors(kDigestFactors.lanes + 8 * half);
      sums = _mm256_add_epi64(sums, _mm256_mul_epu32(lanes[half], factors));
      sums =
          _mm256_add_epi64(sums, _mm256_mul_epu32(_mm256_srli_epi64(lanes[half], 32), _mm256_srli_epi64(factors, 32)));
    }
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) + static_cast<uint64_t>(_mm_extract_epi64(two, 1));
  }
  static __m256i load_factors(const uint32_t* factors) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(factors));
  }

  static bool any_nonfinite(const float* p) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const __m256i bits = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), exponent);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(bits, exponent)) != 0;
  }
  static bool any_exponent16(const uint16_t* p, int exponent_bits) {
    const __m256i exponent = _mm256_set1_epi16(static_cast<int16_t>(exponent_bits));
    const __m256i bits = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), exponent);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(bits, exponent)) != 0;
  }

  // Stores copies of `pattern` from `to` on, one full register at a time. `to` must be aligned to a register. Does
  // not store a remainder shorter than a register. Returns the number of bytes stored.
  static int64_t fill_bytes(unsigned char* to, uint64_t pattern, int64_t size_bytes, bool non_temporal) {
    const __m256i x = _mm256_set1_epi64x(static_cast<int64_t>(pattern));
    int64_t i = 0;
    if (non_temporal) {
      for (; i + 32 <= size_bytes; i += 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), x);
      fence();
    }
    for (; i + 32 <= size_bytes; i += 32) _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), x);
    return i;
  }
};

}  // namespace

const HostLoops& avx2_loops() { return kVectorLoops<Avx2>; }

}  // namespace aliquot
