#pragma once
// Quantizes bf16 matrices to fp8 on a GPU.

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/formats/float8.h"

namespace aliquot::cuda {

/// The arguments of quantize_fp8(): a row-major bf16 matrix, and the arrays that receive its fp8 copies. All arrays are
/// in GPU memory.
struct Fp8Quantization {
  const uint16_t* from = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;  // in elements
  Fp8Format format = Fp8Format::kE4M3;
  uint8_t* to = nullptr;               // rows x columns, contiguous; null: not needed
  uint8_t* transposed = nullptr;       // columns x rows, contiguous; null: not needed
  float* inverse_scale = nullptr;      // receives the factor that converts the copies back
  uint32_t* partial_maxima = nullptr;  // scratch with kFp8PartialMaxima elements
};

/// Whether quantize_fp8() supports the matrix: both extents must be multiples of 16, and all rows aligned to 16 bytes.
bool can_quantize_fp8(const Fp8Quantization& a);

/// Enqueues the copies: to = fp8(from * scale), where `scale` is fp8_scale() of the largest magnitude in the matrix.
/// Infinities and NaN become NaN. The bits do not depend on the stride or on which copies are needed. The copies must
/// be aligned to 16 bytes.
void quantize_fp8(Stream& stream, const Fp8Quantization& a);

}  // namespace aliquot::cuda
