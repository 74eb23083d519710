#pragma once
// The address of a pointer that the model owns and the engine sets.

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
namespace aliquot {

/// The address of a model's pointer to parameters or gradients. The elements that the pointer points to must have the
/// size of the engine's elements. For fp32, this is float. For 16 bits, it is any 16-bit type, such as uint16_t or the
/// model's bf16 type. A void** is accepted for both sizes. An empty slot means that the model has no such pointer.
/// slice() makes a slot of a pointer to an array of several layers. view_slot() of <aliquot/views.h> makes a slot of a
/// view, such as std::mdspan.
class PointerSlot {
 public:
  /// Sets the object at `object` to lead to `to`.
  using Set = void (*)(void* object, std::byte* to);

  PointerSlot(std::nullptr_t = nullptr) {}  // NOLINT(google-explicit-constructor): converts as a pointer does
  template <typename T>
  PointerSlot(T** at)  // NOLINT(google-explicit-constructor)
      : PointerSlot(
            at, [](void* slot, std::byte* to) { *static_cast<T**>(slot) = reinterpret_cast<T*>(to); }, sizeof(T)) {}
  PointerSlot(void** at)  // NOLINT(google-explicit-constructor)
      : PointerSlot(
            at, [](void* slot, std::byte* to) { *static_cast<void**>(slot) = to; }, 0) {}
  /// A slot of an object that is not a pointer. `element_bytes`: the size of its elements, or 0 if it accepts any.
  PointerSlot(void* object, Set setter, int element_bytes)
      : object_(object), set_(object == nullptr ? nullptr : setter), element_bytes_(element_bytes) {}

  bool empty() const { return set_ == nullptr; }
  /// The address of the model's pointer, or null if the slot is empty.
  const void* where() const { return empty() ? nullptr : object_; }
  /// The size of the elements that the pointer points to, or 0 for void.
  int element_bytes() const { return element_bytes_; }
  /// The arguments of slice(). Without slice(), the index is 0 and the count is 0.
  int64_t slice_index() const { return slice_index_; }
  int64_t slice_count() const { return slice_count_; }

  /// Makes the pointer lead to `to`. If the slot is a slice, sets the pointer to the address that is `slice_index()`
  /// slices of `slice_bytes` bytes before `to`.
  void set(std::byte* to, int64_t slice_bytes) const {
    // The result may be outside of every object, and C++ forbids to compute such a pointer from another pointer.
    const auto base = reinterpret_cast<uintptr_t>(to) - static_cast<uintptr_t>(slice_index_ * slice_bytes);
    if (set_ != nullptr) set_(object_, reinterpret_cast<std::byte*>(base));
  }
  void set_null() const {
    if (set_ != nullptr) set_(object_, nullptr);
  }

 private:
  friend PointerSlot slice(PointerSlot base, int64_t index, int64_t count);

  void* object_ = nullptr;
  Set set_ = nullptr;
  int element_bytes_ = 0;
  int64_t slice_index_ = 0, slice_count_ = 0;
};

/// A slot for a model that stores one tensor of `count` layers in one array, and computes the address of layer `index`
/// from one base pointer, as `base + index * elements`. While a scope of the unit is open, this expression is the
/// address of the parameter of the unit. `elements` is the number of elements of the parameter; if a tensor group
/// divides the parameter, the number that this rank has. Example for layer l of L:
///
///     unit.add("qkv", {3 * C, C}, slice(&params.qkv, l, L), slice(&gradients.qkv, l, L));
///
/// Only the slice of the open unit is accessible through the base pointer. The array does not exist: the other slices
/// are at unrelated addresses, which another tensor may use. Therefore, the engine refuses two slices of one pointer in
/// one use. A unit of several layers declares them as one parameter with a longer first extent. All slices of a pointer
/// must have the same number of elements, the same `count`, and different indices. Throws UsageError unless
/// 0 <= index < count.
///
/// The base pointer does not point into an object. By the rules of C and C++, `base + index * elements` is then
/// undefined; compilers for flat address spaces compute the sum of the addresses. Sanitizers report nothing.
PointerSlot slice(PointerSlot base, int64_t index, int64_t count);

/// The model's pointers to one parameter.
struct PointerSlots {
  PointerSlot value, gradient;
};

}  // namespace aliquot
#pragma GCC visibility pop
