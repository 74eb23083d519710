#pragma once
// Arrays whose elements are fp32, bf16 or fp16, told apart while the program runs.

#include <cstddef>
#include <cstdint>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// An element of fp16, so that a pointer tells it from bf16, which is a plain uint16_t.
struct Fp16 {
  uint16_t bits;
};

/// Elements to write, of the kind that `type` says; owns nothing. Null where there is no array.
struct Values {
  void* data = nullptr;
  DType type = DType::kFloat32;

  Values() = default;
  Values(void* at, DType of) : data(at), type(of) {}
  Values(std::nullptr_t) {}            // NOLINT(google-explicit-constructor): as a pointer would
  Values(float* fp32) : data(fp32) {}  // NOLINT(google-explicit-constructor)
  Values(uint16_t* bf16) : data(bf16), type(DType::kBFloat16) {}  // NOLINT(google-explicit-constructor)
  Values(Fp16* fp16) : data(fp16), type(DType::kFloat16) {}       // NOLINT(google-explicit-constructor)

  Values from(int64_t element) const {
    return data == nullptr ? *this : Values{static_cast<std::byte*>(data) + element * element_bytes(type), type};
  }
  /// Only where `type` is fp32.
  float* fp32() const { return static_cast<float*>(data); }
};

/// The same to read.
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
