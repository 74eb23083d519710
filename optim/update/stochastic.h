#pragma once
// Rounding moments to bf16 so that they are right on average: one that moves by less than half a unit still moves.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"
#include "kernels/formats/philox.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What the words of a step's roundings are drawn for; an element's word is that of its place in the whole parameter.
ALIQUOT_HOST_DEVICE RandomKey rounding_key(uint64_t seed, int64_t step, int32_t parameter) {
  return {seed, static_cast<uint32_t>(step), static_cast<uint32_t>(parameter), RandomUse::kStochasticRounding};
}

/// `value` truncated to bf16 after its low 16 bits of `noise` were added to its magnitude: up or down in proportion to the
/// distances. Infinities and NaN are truncated. State k of an element takes bits 16 k to 16 k + 15 of the element's word.
ALIQUOT_HOST_DEVICE uint16_t stochastic_bf16(float value, uint32_t noise) {
  const uint32_t bits = float_bits(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return static_cast<uint16_t>((bits + (finite ? noise & 0xffffu : 0u)) >> 16);
}

}  // namespace aliquot
#pragma GCC visibility pop
