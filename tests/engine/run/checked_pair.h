#pragma once
// A model of two units for tests of memory accesses.

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/small_model.h"
#include "tests/support/usage_error_message.h"

namespace aliquot::testing_model {

using test::usage_error_message;

inline constexpr int64_t kCount = 64;

inline void ones(const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); }

/// A model of unit a with one tensor and unit b with two tensors. It has activations. Backward sets all gradients to 1.
struct Pair {
  Pair(World& world, const EngineOptions& options, bool assigns = false,
       std::vector<UseActivations> uses = {{40, 40, 40}, {40, 0, 0}})
      : engine(world, options) {
    engine.add_unit("a").add("w", {8, 8}, &value[0], &gradient[0]);
    engine.add_unit("b").add("w", {kCount}, &value[1], &gradient[1]).add("bias", {kCount}, &value[2], &gradient[2]);
    if (assigns) {
      for (Unit& unit : engine.units()) unit.assigns_gradients();
    }
    engine.declare_activations({std::move(uses), 40});
    engine.materialize(ones);
  }
  void forward() {
    engine.micro_batch();
    for (Unit& unit : engine.units()) const Scope live = unit.forward();
  }
  void backward(UnitId index) {
    const Scope live = engine.units()[index].backward();
    for (int t = index; t <= 2 * index; ++t) std::fill_n(gradient[t], kCount, 1.0f);
  }
  void passes() {
    forward();
    for (const UnitId unit : {1, 0}) backward(unit);
  }

  float *value[3] = {}, *gradient[3] = {};
  Engine engine;
};

inline std::vector<EngineOptions> every_stage(bool check) {
  std::vector<EngineOptions> all;
  for (const int stage : {0, 1, 2, 3}) all.push_back({.zero_stage = stage, .clip = 0, .check = check});
  all.push_back({.zero_stage = 3, .gather = GatherMode::kCopy, .clip = 0, .check = check});
  return all;
}

inline std::string title(const EngineOptions& options) {
  return fmt::format("ZeRO stage {}{}", options.zero_stage, options.gather == GatherMode::kCopy ? ", copied" : "");
}

}  // namespace aliquot::testing_model
