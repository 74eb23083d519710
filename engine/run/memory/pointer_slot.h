#pragma once
// The address of a pointer that the model owns and the engine sets.

#include <cstddef>

#pragma GCC visibility push(default)
namespace aliquot {

/// The address of a model's pointer to parameters or gradients. The elements that the pointer points to must have the
/// size of the engine's elements. For fp32, this is float. For 16 bits, it is any 16-bit type, such as uint16_t or the
/// model's bf16 type. A void** is accepted for both sizes. An empty slot means that the model has no
/// such pointer.
class PointerSlot {
 public:
  PointerSlot(std::nullptr_t = nullptr) {}  // NOLINT(google-explicit-constructor): converts as a pointer does
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
  /// The address of the model's pointer, or null if the slot is empty.
  const void* where() const { return empty() ? nullptr : at_; }
  void set(std::byte* to) const {
    if (set_ != nullptr) set_(at_, to);
  }
  /// The size of the elements that the pointer points to, or 0 for void.
  int element_bytes() const { return element_bytes_; }

 private:
  void* at_ = nullptr;
  void (*set_)(void* slot, std::byte* to) = nullptr;
  int element_bytes_ = 0;
};

/// The model's pointers to one parameter.
struct PointerSlots {
  PointerSlot value, gradient;
};

}  // namespace aliquot
#pragma GCC visibility pop
