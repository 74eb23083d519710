#pragma once
// Training of a model that accesses its parameters through views.

#include <aliquot/aliquot.h>
#include <aliquot/views.h>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace aliquot::test {

/// Trains a step of two units of a matrix with 3 rows and 4 columns. The model accesses values and gradients through
/// views like `empty`. `at(view, i, j)` is an element. Expects the values of the parameters, and the gradient norm.
template <typename MatrixView, typename At>
void train_views(MatrixView empty, At at) {
  World::threads(1, [&](World& world) {
    std::array values{empty, empty}, gradients{empty, empty};
    Engine engine(world, {.clip = 0});
    const std::vector<int64_t> shape = view_shape(empty);
    for (std::size_t u = 0; u < 2; ++u)
      engine.add_unit("layer." + std::to_string(u)).add("w", shape, view_slot(&values[u]), view_slot(&gradients[u]));
    engine.materialize([](const ParameterSpec&, int64_t offset, std::span<float> initial) {
      for (float& value : initial) value = static_cast<float>(offset++);
    });
    engine.micro_batch();
    const bool row_major = shape[0] == 3;
    for (auto& unit : engine.units()) {
      const auto live = unit.forward();
      EXPECT_EQ(at(values[unit.index()], 1, 2), row_major ? 6 : 7);
      EXPECT_EQ(values[unit.index()].extent(0), 3u);
    }
    for (auto& unit : reversed(engine.units())) {
      const auto live = unit.backward();
      at(gradients[unit.index()], 2, 1) = 4;
    }
    EXPECT_EQ(engine.step().gradient_norm, std::sqrt(32.0));
    EXPECT_NE(engine.read("layer.1.w")[row_major ? 9 : 5], row_major ? 9 : 5) << "the step updates this element";
  });
}

}  // namespace aliquot::test
