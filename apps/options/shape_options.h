#pragma once
// Which model, as every command that names one takes it.

#include <optional>
#include <string>

#include "apps/models/shape.h"
#include "apps/options/option_table.h"

namespace aliquot {

/// A preset, and what of it is changed.
struct ShapeOptions {
  std::string model = "gpt2-nano";
  std::optional<int64_t> layers, width, heads, kv_heads, hidden, context, vocabulary;

  /// Whether any of it is not as when nothing is said.
  bool names_a_shape() const;
};

/// Bound to `options`, which must outlive the table and stay where it is.
void add_shape_options(OptionTable& table, ShapeOptions& options);

/// The preset's shape with what --layers and the others change. Throws UsageError where it does not fit together.
ModelShape model_shape(const ShapeOptions& options);

}  // namespace aliquot
