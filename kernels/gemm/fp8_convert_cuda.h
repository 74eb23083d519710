#pragma once
// Rounds fp32 values to fp8 with the instructions of GPUs that have them. Use it in *.cu files only. Tests replace it
// with a simulation.

#include <cstdint>

#include "kernels/formats/float8.h"

namespace aliquot::cuda {

/// Returns the two values as fp8, `low` in the low byte. Has the bits of float_to_fp8().
template <Fp8Format kFormat>
__device__ inline uint32_t to_fp8_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  // The instruction makes infinities the largest value, but NaN becomes kFp8Nan.
  const float nan = float_from_bits(0x7fffffffu);
  low = fabsf(low) < float_from_bits(0x7f800000u) ? low : nan;
  high = fabsf(high) < float_from_bits(0x7f800000u) ? high : nan;
  uint16_t pair;
  if constexpr (kFormat == Fp8Format::kE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return float_to_fp8(low, kFormat) | static_cast<uint32_t>(float_to_fp8(high, kFormat)) << 8;
#endif
}

}  // namespace aliquot::cuda
