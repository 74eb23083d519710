#pragma once
// Conversions between fp32 and the bit patterns of bf16 and fp16. Hosts and GPUs give the same bits for every input.

#include <cstdint>
#include <cstring>

#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {

ALIQUOT_HOST_DEVICE uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

ALIQUOT_HOST_DEVICE float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Rounds to nearest, ties to even; overflows to infinity. A NaN keeps its sign and upper payload and becomes quiet.
ALIQUOT_HOST_DEVICE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet : rounded);
}

/// Exact for every bit pattern, including NaN.
ALIQUOT_HOST_DEVICE float bf16_to_float(uint16_t bf16) { return float_from_bits(static_cast<uint32_t>(bf16) << 16); }

/// Rounds to nearest, ties to even; overflows to infinity. A NaN keeps its sign and upper payload and becomes quiet.
ALIQUOT_HOST_DEVICE uint16_t float_to_fp16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: drop 13 bits of mantissa, and subtract 112 from the exponent, the difference of the biases. A carry
  // from the mantissa into the exponent is correct.
  uint32_t result = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Subnormal results: the last place of 0.5f is the smallest subnormal of fp16, so the addition rounds correctly.
  if (magnitude < 0x38800000u) result = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  if (magnitude >= 0x477ff000u) result = 0x7c00u;  // 65520 and larger values become infinity
  if (magnitude > 0x7f800000u) result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  return static_cast<uint16_t>(sign | result);
}

/// Exact. A NaN becomes quiet.
ALIQUOT_HOST_DEVICE float fp16_to_float(uint16_t fp16) {
  const uint32_t sign = (fp16 & 0x8000u) << 16;
  const uint32_t magnitude = fp16 & 0x7fffu;
  uint32_t result = (magnitude << 13) + 0x38000000u;
  if (magnitude < 0x400u) result = float_bits(static_cast<float>(magnitude) * 0x1p-24f);
  if (magnitude >= 0x7c00u) result = 0x7f800000u | (magnitude << 13) | (magnitude > 0x7c00u ? 0x400000u : 0u);
  return float_from_bits(sign | result);
}

}  // namespace aliquot
#pragma GCC visibility pop
