#pragma once
// Conversion of elements from one dtype to another.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"

namespace aliquot {

/// Returns whether convert() supports these dtypes: equal dtypes, or two floating-point dtypes. The conversion from
/// float64 to 16 bits is not supported, because it would round twice.
bool is_convertible(DType to, DType from);
/// Returns whether `to` represents every value of `from` exactly.
bool is_exactly_convertible(DType to, DType from);

/// Converts `count` elements at `from` to `to_dtype` and writes them to `to`. Rounds to nearest, ties to even; overflow
/// becomes infinity, and NaN stays NaN. The two ranges do not overlap and need no alignment. Requires
/// is_convertible(to_dtype, from_dtype).
void convert(DType to_dtype, std::byte* to, DType from_dtype, const std::byte* from, int64_t count);

/// Returns the value of the element at `at`, which does not have to be aligned. Exact for every dtype.
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
