#include "apps/models/hugging_face/attention_keys.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

bool all_are(const Json& layer_types, const char* type) {
  return layer_types.is_array() && std::ranges::all_of(layer_types, [&](const Json& one) { return one == type; });
}

/// transformers' Llama has no sliding window, so a file that sets one was made for another model.
void refuse_windows(const ConfigValues& values) {
  const Json &window = values.value("sliding_window"), &layers = values.value("layer_types");
  if (!window.is_null() && values.flag("use_sliding_window", true))
    values.refuse("sliding_window", window, "not supported (only null, or use_sliding_window false)");
  if (!layers.is_null() && !all_are(layers, kFull))
    values.refuse("layer_types", layers, "not supported (only \"full_attention\" in every layer)");
}

/// Returns 0 if sliding_window is null.
int64_t window_size(const ConfigValues& values) {
  constexpr int64_t kDefault = 4096;
  if (!values.has("sliding_window")) return kDefault;
  const Json& window = values.value("sliding_window");
  return window.is_null() ? 0 : values.integer("sliding_window", window, 1, kLargestCount);
}

/// transformers' Mistral has the window in every layer and does not read layer_types.
void read_window_of_all_layers(const ConfigValues& values, ModelShape& shape) {
  shape.window = window_size(values);
  const char* type = shape.window != 0 ? kSliding : kFull;
  const Json& layers = values.value("layer_types");
  if (!layers.is_null() && !all_are(layers, type))
    values.refuse("layer_types", layers, fmt::format("not supported (only \"{}\" in every layer)", type));
}

/// Returns the layers with a window according to layer_types.
std::vector<bool> read_layer_types(const ConfigValues& values, const Json& types, const ModelShape& shape) {
  if (!types.is_array() || types.size() != static_cast<size_t>(shape.layers))
    values.refuse("layer_types", types, fmt::format("expected a list of {} values", shape.layers));
  std::vector<bool> windows;
  for (const Json& type : types) {
    if (type != kSliding && type != kFull)
      values.refuse("layer_types", types, fmt::format("not supported (only \"{}\" and \"{}\")", kFull, kSliding));
    if (type == kSliding && shape.window == 0)
      values.refuse("layer_types", types,
                    fmt::format("\"{}\" needs use_sliding_window true and a sliding_window", kSliding));
    windows.push_back(type == kSliding);
  }
  return windows;
}

/// In Qwen2 and Qwen3, layer_types selects the layers with a window. By default, these are the layers from
/// max_window_layers on.
void read_window_of_some_layers(const ConfigValues& values, ModelShape& shape) {
  shape.window = values.flag("use_sliding_window", false) ? window_size(values) : 0;
  constexpr int64_t kDefaultFullLayers = 28;
  const Json &types = values.value("layer_types"), &first = values.value("max_window_layers");
  if (!types.is_null()) {
    shape.window_layers = read_layer_types(values, types, shape);
  } else {
    const int64_t full = values.has("max_window_layers") ? values.integer("max_window_layers", first, 0, kLargestCount)
                                                         : kDefaultFullLayers;
    for (int64_t layer = 0; layer < shape.layers; ++layer) shape.window_layers.push_back(layer >= full);
  }
  const auto windows = std::ranges::count(shape.window_layers, true);
  if (windows == 0) shape.window = 0;
  if (windows == shape.layers || shape.window == 0) shape.window_layers.clear();
}

void read_head_width(const ConfigValues& values, const ConfigFamily& family, ModelShape& shape) {
  if (family.heads_divide_width && shape.width % shape.heads != 0) return;  // check() reports it
  const int64_t given = head_dim(values, family);
  if (given == 0) return;
  if (given * shape.heads > kLargestWidth)
    values.refuse(
        "head_dim", given,
        fmt::format("with {} {} expected at most {}", family.names.heads, shape.heads, kLargestWidth / shape.heads));
  shape.set_head_width(given);
}

}  // namespace

int64_t head_dim(const ConfigValues& values, const ConfigFamily& family) {
  const bool is_set = values.has("head_dim") && (family.head_width != 0 || !values.value("head_dim").is_null());
  return is_set ? values.width("head_dim") : family.head_width;
}

void read_attention(const ConfigValues& values, const ConfigFamily& family, ModelShape& shape) {
  const bool all_biases = family.reads_attention_bias && values.flag("attention_bias", false);
  shape.qkv_bias = family.qkv_bias || all_biases;
  shape.output_bias = all_biases;
  shape.qk_norm = family.qk_norm;
  read_head_width(values, family, shape);
  switch (family.windows) {
    case ConfigWindows::kNone: return refuse_windows(values);
    case ConfigWindows::kAllLayers: return read_window_of_all_layers(values, shape);
    case ConfigWindows::kSomeLayers: return read_window_of_some_layers(values, shape);
  }
}

}  // namespace aliquot
