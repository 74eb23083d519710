#pragma once
// Slots for views: the model accesses its parameters through std::mdspan or Kokkos::View instead of pointers.

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/run/memory/pointer_slot.h"
#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A view such as std::mdspan, or an implementation of it with the same members, whose data handle is a pointer.
template <typename View>
concept MdspanView = std::is_pointer_v<typename View::data_handle_type> &&
    requires(View& view, typename View::data_handle_type to) {
  view = View(to, view.mapping(), view.accessor());
};
/// A view such as Kokkos::View. If it is managed, the view that the engine assigns to it owns no memory.
template <typename View>
concept KokkosView = requires(View& view, typename View::pointer_type to) {
  typename View::array_layout;
  view = View(to, view.layout());
};
template <typename View>
concept ParameterView = MdspanView<View> || KokkosView<View>;

/// Returns the shape that Unit::add() needs for the tensor of a view: the extents, beginning with the one that has the
/// largest stride. These are the extents of a row-major view (layout_right, LayoutRight), and the reversed extents of a
/// column-major view (layout_left, LayoutLeft). A view whose extents fit both is taken as row-major. The view needs its
/// extents, but no memory. Throws UsageError if the elements of the view are not contiguous.
template <ParameterView View>
std::vector<int64_t> view_shape(const View& view) {
  constexpr auto kRank = [] {
    if constexpr (MdspanView<View>)
      return static_cast<std::size_t>(View::rank());
    else
      return static_cast<std::size_t>(View::rank);
  }();
  std::string strides;
  std::vector<int64_t> extents;
  bool row_major = true, column_major = true;
  int64_t below = 1, above = 1;
  for (std::size_t i = 0; i < kRank; ++i) {
    const std::size_t j = kRank - 1 - i;
    extents.push_back(static_cast<int64_t>(view.extent(i)));
    strides += (i == 0 ? "" : ", ") + std::to_string(view.stride(i));
    // The stride of an extent of 1 has no effect.
    column_major &= view.extent(i) == 1 || static_cast<int64_t>(view.stride(i)) == below;
    row_major &= view.extent(j) == 1 || static_cast<int64_t>(view.stride(j)) == above;
    below *= static_cast<int64_t>(view.extent(i)), above *= static_cast<int64_t>(view.extent(j));
  }
  if (row_major) return extents;
  if (column_major) return {extents.rbegin(), extents.rend()};
  throw UsageError("a view of a parameter has the strides [" + strides +
                   "], so its elements are not contiguous: expected a row-major or column-major view without padding");
}

/// The shape of one slice of a view of several layers, for slice(view_slot(&view), index, count): view_shape() without
/// its first extent.
template <ParameterView View>
std::vector<int64_t> slice_shape(const View& view) {
  std::vector<int64_t> shape = view_shape(view);
  if (!shape.empty()) shape.erase(shape.begin());
  return shape;
}

/// A slot for a view. The engine assigns a view of the same extents with another address to `*view`. The view must
/// have its extents when this function is called, and must outlive the engine. Copies of the view keep the old address.
/// An empty slot if `view` is null. Throws UsageError as view_shape().
template <ParameterView View>
PointerSlot view_slot(View* view) {
  if (view == nullptr) return nullptr;
  (void)view_shape(*view);
  const auto set = [](void* object, std::byte* to) {
    View& target = *static_cast<View*>(object);
    if constexpr (MdspanView<View>) {
      using Pointer = typename View::data_handle_type;
      target = View(reinterpret_cast<Pointer>(to), target.mapping(), target.accessor());
    } else {
      using Pointer = typename View::pointer_type;
      target = View(reinterpret_cast<Pointer>(to), target.layout());
    }
  };
  return {view, set, static_cast<int>(sizeof(typename View::value_type))};
}

}  // namespace aliquot
#pragma GCC visibility pop
