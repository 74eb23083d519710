#pragma once
// Encodes and decodes whole blocks of 8-bit codes with AVX-512. Part of update_avx512.cpp.
//
// A code numbers the magnitudes that it can represent, in ascending order. optim/update/dynamic_code.h converts a
// magnitude to its number, and back, with linear functions (CodeLine). For each value, it evaluates all of them and
// takes their minimum or maximum. This header evaluates only the few that can be the minimum or maximum for the value.
// Tables of 16 entries in registers hold their coefficients, and the value's floating-point exponent selects the entry.
// Both headers evaluate a linear function with the same operations, so their results have the same bits.

#include <immintrin.h>

#include "kernels/formats/dtype.h"
#include "optim/update/dynamic_code.h"

namespace aliquot {
namespace {

/// For each pair of binades [2 * 4^(k-64), 2 * 4^(k-63)), with k = 48 to 63: the three lines that can be the minimum
/// for a magnitude in this pair. Three are enough, because the minimum changes from one line to the next at most twice
/// in a pair.
template <typename Magnitudes>
struct EncodeTables {
  static constexpr int kLines = 2 * Magnitudes::kDecades, kCandidateLines = 3;
  alignas(64) float slope[kCandidateLines][16] = {};
  alignas(64) float offset[kCandidateLines][16] = {};

  /// Returns line `index`. The lines are in order of decreasing slope, except the last one, which ends at magnitude 1
  /// and is steeper than the line before.
  static constexpr CodeLine line(int index) {
    if (index == 0) return Magnitudes::below_all();
    return index % 2 == 1 ? Magnitudes::within(index / 2) : Magnitudes::beyond(index / 2 - 1);
  }
  static constexpr int lowest_line_at(double magnitude) {
    int least = 0;
    const auto at = [magnitude](int i) { return double{line(i).slope} * magnitude + double{line(i).offset}; };
    for (int i = 1; i < kLines; ++i) least = at(i) < at(least) ? i : least;
    return least;
  }
  static constexpr double power_of_four(int power) {
    double value = 1.0;
    for (; power < 0; ++power) value /= 4.0;
    return value;
  }

  constexpr EncodeTables() {
    for (int k = 0; k < 16; ++k) {
      const double begin = 2.0 * power_of_four(k - 16), end = k == 15 ? 1.0 : 8.0 * power_of_four(k - 16);
      const int first = lowest_line_at(begin), last = lowest_line_at(end);
      // In a constant expression a throw is a compile-time error.
      if (last - first >= kCandidateLines) throw "kCandidateLines is too small: a pair of binades needs more lines";
      for (int i = 0; i < kCandidateLines; ++i) {
        const CodeLine near = line(first + i < kLines ? first + i : kLines - 1);
        slope[i][k] = near.slope, offset[i][k] = near.offset;
      }
    }
  }
};

/// Decodes a number by linear interpolation within its decade: value = slope * number + offset. For all numbers of one
/// decade, number + kCells - 1 has the same binary exponent as a float. The table index is the low four bits of the
/// biased exponent: 15 for an exponent of 0, and e - 1 for an exponent of e.
template <typename Magnitudes, int kCells>
struct DecodeTables {
  alignas(64) float slope[16] = {};
  alignas(64) float offset[16] = {};

  constexpr DecodeTables() {
    for (int decade = 0; decade < Magnitudes::kDecades; ++decade) {
      const CodeLine line = Magnitudes::value_line(decade);
      const int k = (decade + kCells - 1 + 15) % 16;
      slope[k] = line.slope, offset[k] = line.offset;
    }
    offset[(Magnitudes::kDecades + kCells - 1 + 15) % 16] = 1.0f;  // the last number has the value 1
  }
};

template <typename Code>
inline constexpr int kCellsOf = Code::Magnitudes::kTop / 127;

template <typename Code>
[[gnu::always_inline]] inline __m512 values_of(__m512i number) {
  using Tables = DecodeTables<typename Code::Magnitudes, kCellsOf<Code>>;
  static constexpr Tables kTables;
  const __m512i whole = _mm512_add_epi32(number, _mm512_set1_epi32(kCellsOf<Code> - 1));
  const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(whole)), 23);
  const __m512 slope = _mm512_permutexvar_ps(exponent, _mm512_load_ps(kTables.slope));
  const __m512 offset = _mm512_permutexvar_ps(exponent, _mm512_load_ps(kTables.offset));
  const __m512 value = _mm512_add_ps(_mm512_mul_ps(slope, _mm512_cvtepi32_ps(number)), offset);
  return _mm512_max_ps(value, _mm512_setzero_ps());
}

template <typename Code>
[[gnu::always_inline]] inline __m512i code_numbers_of(__m512 magnitude, __m512 rise) {
  using Magnitudes = typename Code::Magnitudes;
  static constexpr EncodeTables<Magnitudes> kTables;
  const __m512i pair = _mm512_srli_epi32(_mm512_castps_si512(magnitude), 24);
  const __m512i index = _mm512_max_epi32(pair, _mm512_set1_epi32(48));
  const auto evaluate_line = [&](int i) __attribute__((always_inline)) {
    const __m512 slope = _mm512_permutexvar_ps(index, _mm512_load_ps(kTables.slope[i]));
    const __m512 offset = _mm512_permutexvar_ps(index, _mm512_load_ps(kTables.offset[i]));
    return _mm512_add_ps(_mm512_mul_ps(slope, magnitude), offset);
  };
  constexpr CodeLine to_one = Magnitudes::beyond(Magnitudes::kDecades - 1);
  const __m512 last =
      _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(to_one.slope), magnitude), _mm512_set1_ps(to_one.offset));
  __m512 place = _mm512_min_ps(_mm512_min_ps(evaluate_line(0), evaluate_line(1)), evaluate_line(2));
  place = _mm512_min_ps(_mm512_max_ps(place, last), _mm512_set1_ps(static_cast<float>(Magnitudes::kTop)));
  return _mm512_cvttps_epi32(_mm512_add_ps(place, rise));
}

/// Decodes sixteen codes, either signed or unsigned.
template <typename Code>
[[gnu::always_inline]] inline __m512 decode(__m512i code) {
  if constexpr (kCellsOf<Code> == 2) {
    return values_of<Code>(code);
  } else {
    const __m512i number = _mm512_sub_epi32(code, _mm512_set1_epi32(127));
    const __m512i sign = _mm512_and_si512(number, _mm512_set1_epi32(INT32_MIN));
    return _mm512_xor_ps(values_of<Code>(_mm512_abs_epi32(number)), _mm512_castsi512_ps(sign));
  }
}

template <typename Code>
[[gnu::always_inline]] inline __m512i encode(__m512 ratio, __m512 rise) {
  const __m512i bits = _mm512_castps_si512(ratio), one = _mm512_castps_si512(_mm512_set1_ps(1.0f));
  const __m512i magnitude = _mm512_min_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX)), one);
  const __m512i number = code_numbers_of<Code>(_mm512_castsi512_ps(magnitude), rise);
  if constexpr (kCellsOf<Code> == 2) {
    const __mmask16 above_zero = _mm512_test_epi32_mask(magnitude, magnitude);
    return _mm512_max_epi32(number, _mm512_maskz_set1_epi32(above_zero, 1));
  } else {
    const __m512i middle = _mm512_set1_epi32(127);
    const __m512i below = _mm512_sub_epi32(middle, _mm512_min_epi32(number, middle));
    return _mm512_mask_mov_epi32(_mm512_add_epi32(middle, number), _mm512_movepi32_mask(bits), below);
  }
}

template <typename Code>
[[gnu::always_inline]] inline void decode_block(float* values, const uint8_t* codes, float scale) {
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < kBlockElements; i += 16) {
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    _mm512_store_ps(values + i, _mm512_mul_ps(decode<Code>(code), scales));
  }
}

template <typename Code>
[[gnu::always_inline]] inline void encode_block(uint8_t* codes, const float* values, const float* rises,
                                                float inverse) {
  const __m512 inverses = _mm512_set1_ps(inverse);
  for (int64_t i = 0; i < kBlockElements; i += 16) {
    const __m512 ratio = _mm512_mul_ps(_mm512_load_ps(values + i), inverses);
    const __m512i code = encode<Code>(ratio, _mm512_load_ps(rises + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
  }
}

}  // namespace
}  // namespace aliquot
