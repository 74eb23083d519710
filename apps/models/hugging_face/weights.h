#pragma once
// What Hugging Face's transformers wants to know about a model.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/models/shape.h"

namespace aliquot {

/// A parameter's name and extents.
using NamedShape = std::pair<std::string, std::vector<int64_t>>;

/// The GPT-2 or Llama that has these parameters; nothing if they are neither's. What does not show in them is 0: the number
/// of heads; of Llama the context too, and kv_heads is the width of all keys until the heads are known.
std::optional<ModelShape> shape_of(std::span<const NamedShape> parameters);

/// The preset of that family, that many layers and that width; null if there is none.
const ModelShape* find_similar_preset(const ModelShape& shape);

/// The text of config.json, which parse_model_config() reads back to the same shape. `type` is "float32", "bfloat16" or
/// "float16".
std::string config_text(const ModelShape& shape, std::string_view type);

}  // namespace aliquot
