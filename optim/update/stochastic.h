#pragma once
// Stochastic rounding of moments to bf16. It is unbiased, so changes below half a unit in the last place are not lost.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"
#include "kernels/formats/philox.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Returns the key of the random words for the rounding of a parameter in a step. An element uses the random word for
/// its index in the full parameter.
ALIQUOT_HOST_DEVICE RandomKey rounding_key(uint64_t seed, int64_t step, int32_t parameter) {
  return {seed, static_cast<uint32_t>(step), static_cast<uint32_t>(parameter), RandomUse::kStochasticRounding};
}

/// Adds the low 16 bits of `noise` to the magnitude of `value` and truncates to bf16. The result is one of the two bf16
/// neighbors of `value`. The probability of each is proportional to the distance of `value` from the other one.
/// Infinities and NaN are only truncated. State k of an element uses bits 16 k to 16 k + 15 of the element's word.
ALIQUOT_HOST_DEVICE uint16_t stochastic_bf16(float value, uint32_t noise) {
  const uint32_t bits = float_bits(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return static_cast<uint16_t>((bits + (finite ? noise & 0xffffu : 0u)) >> 16);
}

}  // namespace aliquot
#pragma GCC visibility pop
