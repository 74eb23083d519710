#pragma once
// Pointers to arrays of fp32, bf16 or fp16 whose type is known only at run time.

#include <cstddef>
#include <cstdint>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// An fp16 element. A distinct type, because uint16_t stands for bf16.
struct Fp16 {
  uint16_t bits;
};

/// A mutable array with elements of `type`. Does not own it. `data` is null if there is no array.
struct Values {
  void* data = nullptr;
  DType type = DType::kFloat32;

  Values() = default;
  Values(void* at, DType of) : data(at), type(of) {}
  Values(std::nullptr_t) {}                                       // NOLINT(google-explicit-constructor): like a pointer
  Values(float* fp32) : data(fp32) {}                             // NOLINT(google-explicit-constructor)
  Values(uint16_t* bf16) : data(bf16), type(DType::kBFloat16) {}  // NOLINT(google-explicit-constructor)
  Values(Fp16* fp16) : data(fp16), type(DType::kFloat16) {}       // NOLINT(google-explicit-constructor)

  Values from(int64_t element) const {
    return data == nullptr ? *this : Values{static_cast<std::byte*>(data) + element * element_bytes(type), type};
  }
  /// Requires that `type` is fp32.
  float* fp32() const { return static_cast<float*>(data); }
};

/// Like Values, for a constant array.
struct ConstValues {
  const void* data = nullptr;
  DType type = DType::kFloat32;

  ConstValues() = default;
  ConstValues(const void* at, DType of) : data(at), type(of) {}
  ConstValues(std::nullptr_t) {}                                               // NOLINT(google-explicit-constructor)
  ConstValues(const Values& values) : data(values.data), type(values.type) {}  // NOLINT(google-explicit-constructor)
  ConstValues(const float* fp32) : data(fp32) {}                               // NOLINT(google-explicit-constructor)
  ConstValues(const uint16_t* bf16) : data(bf16), type(DType::kBFloat16) {}    // NOLINT(google-explicit-constructor)
  ConstValues(const Fp16* fp16) : data(fp16), type(DType::kFloat16) {}         // NOLINT(google-explicit-constructor)

  ConstValues from(int64_t element) const {
    return data == nullptr ? *this
                           : ConstValues{static_cast<const std::byte*>(data) + element * element_bytes(type), type};
  }
  const float* fp32() const { return static_cast<const float*>(data); }
};

}  // namespace aliquot
#pragma GCC visibility pop
