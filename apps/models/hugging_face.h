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

/// The GPT-2 that has these parameters; nothing if they are not a GPT-2's. The number of heads does not show in them and is 0.
std::optional<ModelShape> gpt2_shape_of(std::span<const NamedShape> parameters);

/// The heads of the preset of that many layers and that width; nothing if there is none.
std::optional<int64_t> preset_heads(const ModelShape& shape);

/// The text of config.json for a GPT-2. `type` is "float32", "bfloat16" or "float16".
std::string gpt2_config(const ModelShape& shape, std::string_view type);

}  // namespace aliquot
