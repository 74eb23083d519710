#pragma once
// Conversions between fp32 and the two fp8 formats of NVIDIA GPUs. Hosts and GPUs give the same bits for every input.
//
// E4M3 has 3 bits of mantissa, values up to 448 and no infinity. E5M2 has 2 bits of mantissa, values up to 57344, and
// an infinity, which no function here returns.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

namespace aliquot {

enum class Fp8Format : uint8_t { kE4M3, kE5M2 };

/// The bits of the NaN that conversions return.
inline constexpr uint8_t kFp8Nan = 0x7f;

/// The parameters of a format. The largest finite values of both formats are 1.75 * 2^largest_exponent.
struct Fp8Layout {
  int mantissa_bits, bias, largest_exponent;
  uint32_t largest_code;  // of finite values
};

ALIQUOT_HOST_DEVICE constexpr Fp8Layout fp8_layout(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? Fp8Layout{3, 7, 8, 0x7e} : Fp8Layout{2, 15, 15, 0x7b};
}

/// Returns 2^exponent, which must be a normal fp32 number.
ALIQUOT_HOST_DEVICE float fp32_power_of_two(int exponent) {
  return float_from_bits(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Rounds to nearest, ties to even. Finite values above the largest one become the largest one. Infinities and NaN
/// become kFp8Nan, so that they are not lost.
ALIQUOT_HOST_DEVICE uint8_t float_to_fp8(float value, Fp8Format format) {
  const Fp8Layout layout = fp8_layout(format);
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return kFp8Nan;
  const int dropped_bits = 23 - layout.mantissa_bits;
  const auto bias_difference = static_cast<uint32_t>(127 - layout.bias);
  // Normal results: as float_to_fp16() does it.
  const uint32_t half = (1u << (dropped_bits - 1)) - 1u + ((magnitude >> dropped_bits) & 1u);
  uint32_t code = (magnitude + half - (bias_difference << 23)) >> dropped_bits;
  // Subnormal results: the last place of `base` is the smallest subnormal, so the addition rounds correctly.
  const float base = fp32_power_of_two(24 - layout.bias - layout.mantissa_bits);
  if (magnitude < (bias_difference + 1u) << 23) code = float_bits(float_from_bits(magnitude) + base) - float_bits(base);
  if (code > layout.largest_code) code = layout.largest_code;
  return static_cast<uint8_t>((bits >> 24 & 0x80u) | code);
}

/// Exact.
ALIQUOT_HOST_DEVICE float fp8_to_float(uint8_t fp8, Fp8Format format) {
  const Fp8Layout layout = fp8_layout(format);
  const uint32_t sign = (fp8 & 0x80u) << 24;
  const uint32_t code = fp8 & 0x7fu;
  uint32_t result = (code << (23 - layout.mantissa_bits)) + (static_cast<uint32_t>(127 - layout.bias) << 23);
  if (code < 1u << layout.mantissa_bits)
    result = float_bits(static_cast<float>(code) * fp32_power_of_two(1 - layout.bias - layout.mantissa_bits));
  if (code > layout.largest_code)
    result = format == Fp8Format::kE5M2 && code == layout.largest_code + 1u ? 0x7f800000u : 0x7fc00000u;
  return float_from_bits(sign | result);
}

/// Returns the factor by which values are multiplied before they are rounded to fp8: the largest power of two with
/// which `largest_magnitude` is at most the largest value of the format. It is between 2^-126 and 2^126, so that the
/// inverse is exact. It is 1 if `largest_magnitude` is 0, infinite or NaN.
ALIQUOT_HOST_DEVICE float fp8_scale(float largest_magnitude, Fp8Format format) {
  constexpr uint32_t kMantissa = 0x7fffffu, kThreeQuarters = 0x600000u;
  const uint32_t bits = float_bits(largest_magnitude);
  if (bits == 0 || bits >= 0x7f800000u) return 1.0f;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int scale = fp8_layout(format).largest_exponent - exponent - ((bits & kMantissa) > kThreeQuarters ? 1 : 0);
  return fp32_power_of_two(scale > 126 ? 126 : scale < -126 ? -126 : scale);
}

}  // namespace aliquot
