#pragma once
// Quantization: 8 bits for each element and one scale for each block. Hosts and GPUs give the same bits.

#include <cstdint>

#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

namespace aliquot {

/// The scale of one block: an element is an integer code from -127 to 127 times the scale. A block with a non-finite
/// element has codes of 0 and a scale of NaN, so all its elements decode to NaN. A block whose largest magnitude is
/// below 1e-30 decodes to zeros.
struct BlockScale {
  float scale = 0, inverse = 0;

  /// `largest_bits` is the bit pattern, without sign, of the element with the largest magnitude.
  ALIQUOT_HOST_DEVICE static BlockScale of(uint32_t largest_bits) {
    constexpr uint32_t kInfinite = 0x7f800000u;
    if (largest_bits >= kInfinite) return {float_from_bits(0x7fc00000u), 0.0f};
    const float largest = float_from_bits(largest_bits);
    if (largest < 1e-30f) return {};
    return {largest / 127.0f, 127.0f / largest};
  }
  ALIQUOT_HOST_DEVICE bool finite() const { return scale == scale; }
  /// Returns the integer code of x, rounded to nearest, ties to even. Adding 1.5 * 2^23 rounds, because a float of that
  /// size has no fraction bits.
  ALIQUOT_HOST_DEVICE float code(float x) const {
    constexpr float kRoundingBias = 12582912.0f;
    return (x * inverse + kRoundingBias) - kRoundingBias;
  }
};

/// Returns the offset in bytes of the scales in an encoded part of `count` elements. The scales follow the codes.
ALIQUOT_HOST_DEVICE int64_t scales_offset(int64_t count) { return count; }

}  // namespace aliquot
