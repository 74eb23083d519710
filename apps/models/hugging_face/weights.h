#pragma once
// Derives a model's shape from its weights, and writes config.json for Hugging Face's transformers.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/models/shape.h"

namespace aliquot {

/// The name and the shape of a parameter.
using NamedShape = std::pair<std::string, std::vector<int64_t>>;

/// The properties of a model that its parameters determine.
struct ParameterExtents {
  ModelShape shape;                        // heads and kv_heads are 0, and for Llama also context and window
  int64_t query_width = 0, key_width = 0;  // of all heads together
};

/// The extents of the GPT-2 or Llama model that has these parameters, or nullopt if they are from another model. Llama
/// includes the model types with the same blocks.
std::optional<ParameterExtents> extents_of(std::span<const NamedShape> parameters);

/// Returns the shape of the preset with the same family, layers and width, or null if there is none.
const ModelShape* find_similar_preset(const ModelShape& shape);

/// The text of a config.json that parse_model_config() reads as this shape. `type` is "float32", "bfloat16" or
/// "float16".
std::string config_text(const ModelShape& shape, std::string_view type);

}  // namespace aliquot
