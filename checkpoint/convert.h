#pragma once
// Elements from one dtype to another.

#include <cstddef>
#include <cstdint>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// Whether convert() knows the pair: floating-point dtypes, but not float64 to 16 bits, which would round twice.
bool converts(DType to, DType from);
/// Whether every value of `from` is one of `to`.
bool converts_exactly(DType to, DType from);

/// Writes `count` elements of `from`, as `to_dtype`, to `to`; to the nearest, ties to even, overflow to infinity, NaN stays NaN. The
/// two do not overlap and need no alignment. converts(to_dtype, from_dtype) holds.
void convert(DType to_dtype, std::byte* to, DType from_dtype, const std::byte* from, int64_t count);

}  // namespace aliquot
