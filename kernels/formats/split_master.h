#pragma once
// Split masters: an fp32 master stored as two 16-bit halves. The high half is the bf16 working copy.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The working copy of a master: bf16, rounded to nearest, ties away from zero. All arithmetic is modulo 2^32, so split
/// and merge are exact inverses for all 2^32 bit patterns. Where rounding carries beyond the finite numbers, the result
/// is:
///   |x| from 0x7f7f8000 (3.3961775e38) to the largest finite number   infinity with the sign of x
///   NaN 0x7f800001 to 0x7f807fff, with either sign                    infinity with the same sign
///   NaN 0x7fff8000 to 0x7fffffff, with either sign                    ZERO with the other sign
///   any other NaN                                                     NaN
/// CUDA arithmetic gives NaN as 0x7fffffff, which becomes zero. So search the master for NaN, never the working copy.
ALIQUOT_HOST_DEVICE uint16_t master_high(float master) {
  return static_cast<uint16_t>((float_bits(master) + 0x8000u) >> 16);
}

/// Returns the low half: the bits of the master minus those of the working copy, int16(bits - (high << 16)). The low 16
/// bits of high << 16 are zero, so the result is the low 16 bits of the master. It is negative if the working copy was
/// rounded away from zero.
ALIQUOT_HOST_DEVICE int16_t master_low(float master) {
  return static_cast<int16_t>(static_cast<uint16_t>(float_bits(master)));
}

/// Restores exactly the master that was split.
ALIQUOT_HOST_DEVICE float merge_master(uint16_t high, int16_t low) {
  return float_from_bits((static_cast<uint32_t>(high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(low)));
}

}  // namespace aliquot
#pragma GCC visibility pop
