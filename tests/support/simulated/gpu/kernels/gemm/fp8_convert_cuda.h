#pragma once
// Replaces kernels/gemm/fp8_convert_cuda.h on simulated GPUs.

#include <cstdint>

#include "kernels/formats/float8.h"

namespace aliquot::cuda {

template <Fp8Format kFormat>
uint32_t to_fp8_pair(float low, float high) {
  return float_to_fp8(low, kFormat) | static_cast<uint32_t>(float_to_fp8(high, kFormat)) << 8;
}

}  // namespace aliquot::cuda
