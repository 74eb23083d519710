#pragma once
// An fp32 master kept as two halves, of which the upper is the bf16 working copy.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The working copy of a master: bf16, rounded half up in magnitude (nearest-even but for ties). All arithmetic is
/// modulo 2^32, so that split and merge are inverse for all 2^32 patterns. Where the carry leaves the finite numbers,
/// it is:
///   |x| of 0x7f7f8000 (3.3961775e38) up to the largest finite   infinity of its sign, as nearest-even has it
///   NaN 0x7f800001 to 0x7f807fff, either sign                   infinity of its sign
///   NaN 0x7fff8000 to 0x7fffffff, either sign                   ZERO of the other sign; CUDA's arithmetic makes
///   0x7fffffff any other NaN                                               NaN
/// So a NaN in a master is looked for in the master, or before it gets there, never in the working copy.
ALIQUOT_HOST_DEVICE uint16_t master_high(float master) {
  return static_cast<uint16_t>((float_bits(master) + 0x8000u) >> 16);
}

/// What the working copy lacks, as a signed count of the master's units in the last place: int16(bits - (high << 16)),
/// and as the subtrahend has no low bits, the low bits alone.
ALIQUOT_HOST_DEVICE int16_t master_low(float master) {
  return static_cast<int16_t>(static_cast<uint16_t>(float_bits(master)));
}

/// The master that was split, exactly.
ALIQUOT_HOST_DEVICE float merge_master(uint16_t high, int16_t low) {
  return float_from_bits((static_cast<uint32_t>(high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(low)));
}

}  // namespace aliquot
#pragma GCC visibility pop
