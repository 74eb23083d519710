#pragma once
// Eight bits an element and a scale a block: what few bytes say of many, the same on a host and on a GPU.

#include <cstdint>

#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

namespace aliquot {

/// A block's elements are whole numbers from -127 to 127, times a scale. A block that holds anything not finite has codes of 0
/// and a scale of NaN, so that all of it comes back as NaN; one whose largest is below 1e-30 comes back as zeros.
struct BlockScale {
  float scale = 0, inverse = 0;

  /// `largest_bits`: the largest of the elements' bits without their signs.
  ALIQUOT_HOST_DEVICE static BlockScale of(uint32_t largest_bits) {
    constexpr uint32_t kInfinite = 0x7f800000u;
    if (largest_bits >= kInfinite) return {float_from_bits(0x7fc00000u), 0.0f};
    const float largest = float_from_bits(largest_bits);
    if (largest < 1e-30f) return {};
    return {largest / 127.0f, 127.0f / largest};
  }
  ALIQUOT_HOST_DEVICE bool finite() const { return scale == scale; }
  /// To the nearest, ties to even: adding 1.5 x 2^23 leaves no bits behind the point.
  ALIQUOT_HOST_DEVICE float code(float x) const {
    constexpr float kRoundingBias = 12582912.0f;
    return (x * inverse + kRoundingBias) - kRoundingBias;
  }
};

/// Where the scales of a part of `count` elements lie, from its first byte.
ALIQUOT_HOST_DEVICE int64_t scales_offset(int64_t count) { return count; }

}  // namespace aliquot
