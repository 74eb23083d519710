#pragma once
// Between fp32 and what weights are computed with, by integer arithmetic alone, so that every device gives the same
// bits.

#include <cstdint>

#include "optim/rule.h"

namespace aliquot {

ALIQUOT_RULE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
ALIQUOT_RULE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

ALIQUOT_RULE float from_bf16(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

/// The bf16 half of a master, rounded half up in magnitude, and the 16-bit remainder; merged() is their exact inverse
/// for all 2^32 patterns.
ALIQUOT_RULE uint16_t high_half(float value) { return static_cast<uint16_t>((bits_of(value) + 0x8000u) >> 16); }
ALIQUOT_RULE int16_t low_half(float value) { return static_cast<int16_t>(static_cast<uint16_t>(bits_of(value))); }
ALIQUOT_RULE float merged(uint16_t high, int16_t low) {
  return float_of((static_cast<uint32_t>(high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(low)));
}

/// To the nearest, ties to even; NaN becomes the quiet NaN of its sign.
ALIQUOT_RULE uint16_t to_fp16(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  // At 0.5 an fp32 has the spacing of the subnormal fp16, so that addition rounds to it.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t huge = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (magnitude >= 0x47800000u ? huge : finite));
}

}  // namespace aliquot
