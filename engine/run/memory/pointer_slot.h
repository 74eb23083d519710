#pragma once
// Where a model keeps one of its pointers.

#include <cstddef>

#pragma GCC visibility push(default)
namespace aliquot {

/// The address of a pointer that the model owns: float** where it computes in fp32; a pointer to any 16-bit type (uint16_t,
/// the model's own bf16) where it computes in 16 bits; void** goes with both. Empty: the model keeps none.
class PointerSlot {
 public:
  PointerSlot(std::nullptr_t = nullptr) {}  // NOLINT(google-explicit-constructor): as a pointer would
  template <typename T>
  PointerSlot(T** at)  // NOLINT(google-explicit-constructor)
      : at_(at), set_([](void* slot, std::byte* to) { *static_cast<T**>(slot) = reinterpret_cast<T*>(to); }) {
    if (at == nullptr) set_ = nullptr;
    element_bytes_ = static_cast<int>(sizeof(T));
  }
  PointerSlot(void** at)  // NOLINT(google-explicit-constructor)
      : at_(at), set_([](void* slot, std::byte* to) { *static_cast<void**>(slot) = to; }) {
    if (at == nullptr) set_ = nullptr;
  }

  bool empty() const { return set_ == nullptr; }
  /// Which pointer it is; null: none.
  const void* where() const { return empty() ? nullptr : at_; }
  void set(std::byte* to) const {
    if (set_ != nullptr) set_(at_, to);
  }
  /// Bytes of one element of what it points at; 0: anything.
  int element_bytes() const { return element_bytes_; }

 private:
  void* at_ = nullptr;
  void (*set_)(void* slot, std::byte* to) = nullptr;
  int element_bytes_ = 0;
};

/// Where one parameter's model keeps its pointers.
struct PointerSlots {
  PointerSlot value, gradient;
};

}  // namespace aliquot
#pragma GCC visibility pop
