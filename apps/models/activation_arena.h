#pragma once
// Several arrays in one piece of memory, whose size is known before it exists.

#include <cstddef>
#include <cstdint>

#include "kernels/formats/values.h"

namespace aliquot {

/// Hands out parts one after the other. Run the same takes twice: over no memory to learn the size, then over memory.
class ActivationArena {
 public:
  static constexpr int64_t kAlignmentBytes = 64;

  explicit ActivationArena(std::byte* memory = nullptr) : memory_(memory) {}

  /// Null while there is no memory, and where nothing is asked for.
  Values take(int64_t element_count, DType type) {
    const int64_t at = used_bytes_;
    used_bytes_ += (element_count * element_bytes(type) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return {memory_ == nullptr || element_count == 0 ? nullptr : memory_ + at, type};
  }
  float* take(int64_t element_count) { return take(element_count, DType::kFloat32).fp32(); }

  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* memory_;
  int64_t used_bytes_ = 0;
};

}  // namespace aliquot
