#pragma once
// Packs several arrays into one allocation, after computing its size.

#include <cstddef>
#include <cstdint>

#include "kernels/formats/values.h"

namespace aliquot {

/// A bump allocator. Make the same calls of allocate() twice: first without memory to compute the size, then with
/// memory of that size.
class ActivationArena {
 public:
  static constexpr int64_t kAlignmentBytes = 64;

  explicit ActivationArena(std::byte* memory = nullptr) : memory_(memory) {}

  /// Returns the next `element_count` elements, or null if the arena has no memory or the count is 0.
  Values allocate(int64_t element_count, DType type) {
    const int64_t at = used_bytes_;
    used_bytes_ += (element_count * element_bytes(type) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return {memory_ == nullptr || element_count == 0 ? nullptr : memory_ + at, type};
  }
  float* allocate(int64_t element_count) { return allocate(element_count, DType::kFloat32).fp32(); }

  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* memory_;
  int64_t used_bytes_ = 0;
};

}  // namespace aliquot
