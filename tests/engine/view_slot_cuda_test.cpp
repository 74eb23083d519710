// Tests slots for the implementation of std::mdspan in the CUDA toolkit.
#include "tests/engine/view_training.h"

#if __has_include(<cuda/std/mdspan>)
#include <cuda/std/mdspan>

namespace aliquot::test {
namespace {

TEST(ViewSlot, MdspanOfTheCudaToolkit) {
  using Extents = cuda::std::extents<int, 3, cuda::std::dynamic_extent>;
  const auto at = [](const auto& view, int i, int j) -> float& { return view(i, j); };
  train_views(cuda::std::mdspan<float, Extents>(nullptr, 4), at);
  train_views(cuda::std::mdspan<float, Extents, cuda::std::layout_left>(nullptr, 4), at);
}

}  // namespace
}  // namespace aliquot::test
#endif
