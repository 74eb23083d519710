#pragma once
// Elements of any dtype as numbers.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"

namespace aliquot {

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
