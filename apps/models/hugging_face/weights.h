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

/// The shape of the GPT-2 or Llama model that has these parameters, or nullopt if they are from another model. Llama
/// includes the model types with the same blocks. The parameters do not determine the number of heads and, for Llama,
/// the context and the window: these fields are 0. For Llama, own_head_width is the width of all queries together, and
/// kv_heads that of all keys. The caller divides both by the numbers of heads.
std::optional<ModelShape> shape_of(std::span<const NamedShape> parameters);

/// Returns the shape of the preset with the same family, layers and width, or null if there is none.
const ModelShape* find_similar_preset(const ModelShape& shape);

/// The text of a config.json that parse_model_config() reads as this shape. `type` is "float32", "bfloat16" or
/// "float16".
std::string config_text(const ModelShape& shape, std::string_view type);

}  // namespace aliquot
