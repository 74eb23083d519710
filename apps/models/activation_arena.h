#pragma once
// Activations in one piece of memory whose size is known before it exists.

#include <cstddef>
#include <cstdint>

namespace aliquot {

/// Hands out parts one after the other. Run the same takes twice: over no memory to learn the size, then over memory.
class ActivationArena {
 public:
  static constexpr int64_t kAlignmentBytes = 64;

  explicit ActivationArena(std::byte* memory = nullptr) : memory_(memory) {}

  /// Null while there is no memory.
  float* take(int64_t element_count) {
    const int64_t at = used_bytes_;
    const int64_t bytes = element_count * static_cast<int64_t>(sizeof(float));
    used_bytes_ += (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    return memory_ == nullptr ? nullptr : reinterpret_cast<float*>(memory_ + at);
  }

  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* memory_;
  int64_t used_bytes_ = 0;
};

}  // namespace aliquot
