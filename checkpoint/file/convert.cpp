#include "checkpoint/file/convert.h"

#include <cstring>

#include "kernels/formats/element.h"

namespace aliquot {
namespace {

/// float64 with the interface of the element types in kernels/formats/element.h.
struct Fp64Element {
  using Storage = double;
  static double load(double x) { return x; }
  static double store(double x) { return x; }
};

template <typename To, typename From>
void convert_elements(std::byte* to, const std::byte* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    typename From::Storage in;
    std::memcpy(&in, from + i * static_cast<int64_t>(sizeof in), sizeof in);
    const auto out = To::store(static_cast<decltype(To::load({}))>(From::load(in)));
    std::memcpy(to + i * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

template <typename From>
void convert_to(DType to_dtype, std::byte* to, const std::byte* from, int64_t count) {
  switch (to_dtype) {
    case DType::kFloat64: return convert_elements<Fp64Element, From>(to, from, count);
    case DType::kFloat32: return convert_elements<Fp32Element, From>(to, from, count);
    case DType::kBFloat16: return convert_elements<Bf16Element, From>(to, from, count);
    case DType::kFloat16: return convert_elements<Fp16Element, From>(to, from, count);
    default: return;
  }
}

bool is_float(DType dtype) { return dtype != DType::kInt16 && dtype != DType::kUInt8; }

}  // namespace

bool is_convertible(DType to, DType from) {
  if (to == from) return true;
  return is_float(to) && is_float(from) && !(from == DType::kFloat64 && element_bytes(to) == 2);
}

bool is_exactly_convertible(DType to, DType from) {
  return to == from || (is_convertible(to, from) && element_bytes(to) > element_bytes(from));
}

void convert(DType to_dtype, std::byte* to, DType from_dtype, const std::byte* from, int64_t count) {
  if (to_dtype == from_dtype) {
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count * element_bytes(to_dtype)));
    return;
  }
  switch (from_dtype) {
    case DType::kFloat64: return convert_to<Fp64Element>(to_dtype, to, from, count);
    case DType::kFloat32: return convert_to<Fp32Element>(to_dtype, to, from, count);
    case DType::kBFloat16: return convert_to<Bf16Element>(to_dtype, to, from, count);
    case DType::kFloat16: return convert_to<Fp16Element>(to_dtype, to, from, count);
    default: return;
  }
}

}  // namespace aliquot
