#pragma once
// Elements from one dtype to another.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"

namespace aliquot {

/// Whether convert() knows the pair: floating-point dtypes, but not float64 to 16 bits, which would round twice.
bool is_convertible(DType to, DType from);
/// Whether every value of `from` is one of `to`.
bool is_exactly_convertible(DType to, DType from);

/// Writes `count` elements of `from`, as `to_dtype`, to `to`; to the nearest, ties to even, overflow to infinity, NaN stays NaN. The
/// two do not overlap and need no alignment. is_convertible(to_dtype, from_dtype) holds.
void convert(DType to_dtype, std::byte* to, DType from_dtype, const std::byte* from, int64_t count);

/// The element that begins at `at`, which need not be aligned; exact for every dtype.
inline double element_value(DType dtype, const std::byte* at) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kFloat64: return load(double{});
    case DType::kFloat32: return load(float{});
    case DType::kBFloat16: return bf16_to_float(load(uint16_t{}));
    case DType::kFloat16: return fp16_to_float(load(uint16_t{}));
    case DType::kInt16: return load(int16_t{});
    case DType::kUInt8: return load(uint8_t{});
  }
  return 0;
}

}  // namespace aliquot
