#pragma once
// Which model, as every command that names one takes it.

#include <optional>
#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "apps/options/arguments.h"

namespace aliquot {

inline constexpr const char* kDefaultModel = "gpt2-nano";

/// A preset or a config.json, and what of it is changed.
struct ShapeOptions {
  std::string model;  // empty: kDefaultModel, or what --init defines
  std::optional<int64_t> layers, width, heads, kv_heads, hidden, context, vocabulary;

  /// The shape from a file instead of a preset: the config.json of --model, or the model of --init.
  std::optional<ModelShape> file_shape;
  std::vector<std::string> remarks;  // warnings about the file of --model

  /// Whether any of these options was given.
  bool has_shape_options() const;
};

/// Sets --model to the name of a preset, or to the path of a config.json or of its folder, which is read. Any other text with
/// a slash or the ending .json, or that exists as a file or folder, is a path. Throws UsageError.
void set_model(ShapeOptions& options, const std::string& model);

/// Bound to `options`, which must outlive the table and stay where it is.
void add_shape_options(OptionTable& table, ShapeOptions& options);

/// The shape of the preset or of the file with what --layers and the others change. Throws UsageError where it does not fit together.
ModelShape model_shape(const ShapeOptions& options);

/// The name of the preset; "gpt2" or "llama" if the shape is from a file.
std::string model_name(const ShapeOptions& options);

/// Throws UsageError, naming the flag, both values and `where`, if an option that was given contradicts `shape`. `names` are
/// the names of its fields at `where`. With `allow_more_layers`, more layers than the shape has are no contradiction.
void check_consistent(const ShapeOptions& given, const ModelShape& shape, const std::string& where,
                      const ShapeNames& names, bool allow_more_layers);

}  // namespace aliquot
