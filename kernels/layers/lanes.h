#pragma once
// Vectors of sixteen floats, loaded from and stored to fp32, bf16 or fp16. The compiler maps them to the vector
// registers of the instruction set for which it compiles the including file. All instruction sets give the same bits.

#include <cstdint>
#include <cstring>

#include "kernels/formats/values.h"

namespace aliquot {
namespace {  // internal linkage: the linker must not merge functions compiled for different instruction sets

constexpr int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = int32_t __attribute__((vector_size(64)));
using BitLanes = uint32_t __attribute__((vector_size(64)));
using ShortLanes = uint16_t __attribute__((vector_size(32)));

#define ALIQUOT_LANES_INLINE [[gnu::always_inline]] inline

ALIQUOT_LANES_INLINE Lanes all(float value) { return Lanes{} + value; }

ALIQUOT_LANES_INLINE Lanes load(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
ALIQUOT_LANES_INLINE void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof(x)); }

ALIQUOT_LANES_INLINE BitLanes bits_of(Lanes x) {
  BitLanes bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
ALIQUOT_LANES_INLINE Lanes from_bits(BitLanes bits) {
  Lanes x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Conversions from and to 16 bits. The type of the unused pointer selects bf16 (uint16_t) or fp16. Rounds to nearest,
/// ties to even. A NaN stays a NaN.
ALIQUOT_LANES_INLINE Lanes widened(const uint16_t*, ShortLanes x) {
  return from_bits(__builtin_convertvector(x, BitLanes) << 16);
}
ALIQUOT_LANES_INLINE ShortLanes rounded(const uint16_t*, Lanes x) {
  BitLanes bits = bits_of(x);
  const BitLanes nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
  bits = x == x ? nearest : bits | 0x400000u;
  return __builtin_convertvector(bits >> 16, ShortLanes);
}
/// The algorithms of fp16_to_float() and float_to_fp16(): see the comments in kernels/formats/float16.h.
ALIQUOT_LANES_INLINE Lanes widened(const Fp16*, ShortLanes x) {
  const BitLanes wide = __builtin_convertvector(x, BitLanes);
  const BitLanes magnitude = wide & 0x7fffu;
  const Lanes small = __builtin_convertvector((IntLanes)magnitude, Lanes) * 0x1p-24f;
  BitLanes bits = (magnitude << 13) + 0x38000000u;
  bits = magnitude < 0x400u ? bits_of(small) : bits;
  const BitLanes quiet = magnitude > 0x7c00u ? BitLanes{} + 0x400000u : BitLanes{};
  bits = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) | quiet : bits;
  return from_bits(bits | (wide & 0x8000u) << 16);
}
ALIQUOT_LANES_INLINE ShortLanes rounded(const Fp16*, Lanes x) {
  const BitLanes wide = bits_of(x);
  const BitLanes magnitude = wide & 0x7fffffffu;
  BitLanes bits = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  bits = magnitude < 0x38800000u ? bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u : bits;
  bits = magnitude >= 0x477ff000u ? BitLanes{} + 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : bits;
  return __builtin_convertvector(bits | ((wide >> 16) & 0x8000u), ShortLanes);
}

template <typename Short>
ALIQUOT_LANES_INLINE Lanes load(const Short* from) {
  ShortLanes x;
  std::memcpy(&x, from, sizeof(x));
  return widened(from, x);
}
template <typename Short>
ALIQUOT_LANES_INLINE void store(Short* to, Lanes x) {
  const ShortLanes y = rounded(to, x);
  std::memcpy(to, &y, sizeof(y));
}

/// Loads the first `count` lanes from memory and sets the others to `beyond`.
ALIQUOT_LANES_INLINE Lanes load(const float* from, int64_t count, float beyond = 0.0f) {
  Lanes x = all(beyond);
  std::memcpy(&x, from, static_cast<size_t>(count) * sizeof(float));
  return x;
}
ALIQUOT_LANES_INLINE void store(float* to, Lanes x, int64_t count) {
  std::memcpy(to, &x, static_cast<size_t>(count) * sizeof(float));
}
template <typename Short>
ALIQUOT_LANES_INLINE Lanes load(const Short* from, int64_t count, float beyond = 0.0f) {
  ShortLanes x = rounded(from, all(beyond));
  std::memcpy(&x, from, static_cast<size_t>(count) * sizeof(Short));
  return widened(from, x);
}
template <typename Short>
ALIQUOT_LANES_INLINE void store(Short* to, Lanes x, int64_t count) {
  const ShortLanes y = rounded(to, x);
  std::memcpy(to, &y, static_cast<size_t>(count) * sizeof(Short));
}

/// Calls body(get, put) for the elements [begin, end), sixteen at a time. get(p) loads lanes of array p; put(p, x)
/// stores them. In the last, partial vector, get(p, beyond) reads lanes past the end as `beyond` (default 0), and put()
/// does not write them.
template <typename Body>
ALIQUOT_LANES_INLINE void for_lanes(int64_t begin, int64_t end, Body&& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    body([i](const auto* p, float = 0.0f) { return load(p + i); }, [i](auto* p, Lanes x) { store(p + i, x); });
  }
  if (i < end) {
    const int64_t left = end - i;
    body([i, left](const auto* p, float beyond = 0.0f) { return load(p + i, left, beyond); },
         [i, left](auto* p, Lanes x) { store(p + i, x, left); });
  }
}

/// The sum of the lanes: adds the upper half to the lower half until one lane is left.
ALIQUOT_LANES_INLINE float fold_sum(Lanes x) {
  float v[kLanes];
  store(v, x);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

ALIQUOT_LANES_INLINE Lanes larger(Lanes a, Lanes b) { return b > a ? b : a; }

ALIQUOT_LANES_INLINE float fold_max(Lanes x) {
  float largest = x[0];
  for (int64_t i = 1; i < kLanes; ++i) {
    const float value = x[i];
    if (value > largest) largest = value;
  }
  return largest;
}

/// e^x, with an error of about one unit in the last place. Clamps x to [-87.3, 88], where the result is a normal
/// number.
ALIQUOT_LANES_INLINE Lanes exponential(Lanes x) {
  x = x < -87.3f ? all(-87.3f) : x;
  x = x > 88.0f ? all(88.0f) : x;
  // x = n ln 2 + r with an integer n. Adding 1.5 x 2^23 rounds to an integer and leaves n in the low bits. ln 2 is
  // split into two parts to keep r accurate.
  const Lanes shifted = x * 1.44269504f + 12582912.0f;
  const Lanes n = shifted - 12582912.0f;
  const Lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = r * (1.0f / 5040) + (1.0f / 720);  // Taylor series; the error is 5e-9 for |r| <= 0.35
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  IntLanes bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  const IntLanes power = (bits + 127) << 23;  // the bit pattern of 2^n, for the n in the low bits of `bits`
  Lanes scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return p * scale;
}

}  // namespace
}  // namespace aliquot
