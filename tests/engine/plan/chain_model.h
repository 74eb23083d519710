#pragma once
// A model whose units are used one after another.

#include <fmt/format.h>

#include "engine/plan/model_spec.h"

namespace aliquot::testing {

/// Returns a model of `unit_count` units h.0, h.1, ... Each unit has one tensor, such as h.0.w.
inline ModelSpec chain(int unit_count, int64_t element_count = 1000) {
  ModelSpec model;
  for (int u = 0; u < unit_count; ++u) {
    model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.w", u), {element_count}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  return model;
}

}  // namespace aliquot::testing
