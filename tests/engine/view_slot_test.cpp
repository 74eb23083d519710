// Tests of slots for views: std::mdspan, and stand-ins for it and for Kokkos::View with the members that the slots use.
#include <type_traits>
#include <version>

#include "tests/engine/view_training.h"

#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

namespace {

struct RowMajor {};
struct ColumnMajor {};

/// A matrix whose mapping has strides.
template <typename Order>
struct Mapping {
  std::array<std::size_t, 2> extents{}, strides{};
  Mapping() = default;
  Mapping(std::size_t rows, std::size_t columns)
      : extents{rows, columns},
        strides{std::is_same_v<Order, RowMajor> ? std::array{columns, std::size_t{1}}
                                                : std::array{std::size_t{1}, rows}} {}
};

/// Has the members of std::mdspan that view_slot() uses.
template <typename T, typename Order = RowMajor>
class Span {
 public:
  using value_type = std::remove_cv_t<T>;
  using data_handle_type = T*;
  struct Accessor {};
  Span() = default;
  Span(T* data, const Mapping<Order>& mapping, const Accessor& = {}) : data_(data), mapping_(mapping) {}
  static constexpr std::size_t rank() { return 2; }
  std::size_t extent(std::size_t i) const { return mapping_.extents[i]; }
  std::size_t stride(std::size_t i) const { return mapping_.strides[i]; }
  const Mapping<Order>& mapping() const { return mapping_; }
  Accessor accessor() const { return {}; }
  T& operator()(std::size_t i, std::size_t j) const { return data_[i * stride(0) + j * stride(1)]; }
  T* data_handle() const { return data_; }

 private:
  T* data_ = nullptr;
  Mapping<Order> mapping_;
};

/// Has the members of Kokkos::View that view_slot() uses.
template <typename T, typename Order>
class View {
 public:
  using value_type = T;
  using pointer_type = T*;
  using array_layout = Mapping<Order>;
  enum { rank = 2 };
  View() = default;
  View(T* data, const array_layout& layout) : data_(data), layout_(layout) {}
  std::size_t extent(std::size_t i) const { return layout_.extents[i]; }
  std::size_t stride(std::size_t i) const { return layout_.strides[i]; }
  array_layout layout() const { return layout_; }
  T& operator()(std::size_t i, std::size_t j) const { return data_[i * stride(0) + j * stride(1)]; }
  T* data_handle() const { return data_; }

 private:
  T* data_ = nullptr;
  array_layout layout_;
};

using Shape = std::vector<int64_t>;
using aliquot::test::train_views;

TEST(ViewSlot, ShapesBeginWithTheLargestStride) {
  EXPECT_EQ(aliquot::view_shape(Span<float>(nullptr, {3, 4})), (Shape{3, 4}));
  EXPECT_EQ(aliquot::view_shape(Span<float, ColumnMajor>(nullptr, {3, 4})), (Shape{4, 3}));
  EXPECT_EQ(aliquot::view_shape(View<float, ColumnMajor>(nullptr, {3, 4})), (Shape{4, 3}));
  EXPECT_EQ(aliquot::view_shape(Span<float, ColumnMajor>(nullptr, {1, 4})), (Shape{1, 4}));
  EXPECT_EQ(aliquot::slice_shape(Span<float>(nullptr, {3, 4})), (Shape{4}));
}

TEST(ViewSlot, PaddedViewsAreRefused) {
  Mapping<RowMajor> padded(3, 4);
  padded.strides = {8, 1};
  Span<float> view(nullptr, padded);
  try {
    (void)aliquot::view_slot(&view);
    ADD_FAILURE() << "no error was thrown";
  } catch (const aliquot::UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "a view of a parameter has the strides [8, 1], so its elements are not contiguous: expected a row-major "
        "or column-major view without padding");
  }
  EXPECT_TRUE(aliquot::view_slot(static_cast<Span<float>*>(nullptr)).empty());
  view = Span<float>(nullptr, {3, 4});
  EXPECT_EQ(aliquot::view_slot(&view).element_bytes(), 4);
}

template <typename MatrixView>
float& call(const MatrixView& view, int i, int j) {
  return view(static_cast<std::size_t>(i), static_cast<std::size_t>(j));
}

TEST(ViewSlot, ViewsLeadToParametersAndGradients) {
  train_views(Span<float>(nullptr, {3, 4}), call<Span<float>>);
  train_views(Span<float, ColumnMajor>(nullptr, {3, 4}), call<Span<float, ColumnMajor>>);
  train_views(View<float, RowMajor>(nullptr, {3, 4}), call<View<float, RowMajor>>);
  train_views(View<float, ColumnMajor>(nullptr, {3, 4}), call<View<float, ColumnMajor>>);
}

TEST(ViewSlot, ASliceOfAView) {
  aliquot::World::threads(1, [](aliquot::World& world) {
    Span<float> weights(nullptr, {2, 5}), gradients(nullptr, {2, 5});  // a row for each layer
    aliquot::Engine engine(world, {});
    for (int l = 0; l < 2; ++l)
      engine.add_unit("layer." + std::to_string(l))
          .add("w", aliquot::slice_shape(weights), slice(aliquot::view_slot(&weights), l, 2),
               slice(aliquot::view_slot(&gradients), l, 2));
    engine.materialize([](const aliquot::ParameterSpec& parameter, int64_t offset, std::span<float> values) {
      for (float& value : values) value = static_cast<float>((parameter.tensor.name[6] - '0') * 10 + offset++);
    });
    for (int l = 0; l < 2; ++l) {
      const auto live = engine.units()[static_cast<std::size_t>(l)].evaluate();
      for (int i = 0; i < 5; ++i) EXPECT_EQ(call(weights, l, i), 10 * l + i);
    }
  });
}

#ifdef __cpp_lib_mdspan
TEST(ViewSlot, StandardMdspan) {
  using Extents = std::extents<int, 3, std::dynamic_extent>;
  const auto at = [](const auto& view, int i, int j) -> float& { return view[i, j]; };
  train_views(std::mdspan<float, Extents>(nullptr, 4), at);
  train_views(std::mdspan<float, Extents, std::layout_left>(nullptr, 4), at);
}
#endif

}  // namespace
