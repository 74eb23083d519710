#include "apps/checkpoints/saved_shape.h"

#include <fmt/format.h>

#include "checkpoint/difference.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

using Scalars = std::map<std::string, Scalar>;

constexpr ShapeNames kScalarNames{"layers",  "width",      "heads",        "kv_heads",  "hidden",
                                  "context", "vocabulary", "norm_epsilon", "rope_theta"};
// Older checkpoints store rope_factor under this name. The value 1 means no scaling.
constexpr const char* kLegacyRopeFactorName = "rotary_factor";

template <typename T>
const T* find(const Scalars& scalars, const std::string& name) {
  const auto found = scalars.find(name);
  if (found == scalars.end()) return nullptr;
  const auto* value = std::get_if<T>(&found->second);
  if (value == nullptr)
    throw UsageError(
        fmt::format("the checkpoint's scalar {} is {}, which has the wrong type: expected a checkpoint of aliquot "
                    "train or aliquot checkpoint import.",
                    name, describe(found->second)));
  return value;
}

/// Sets `value` to the scalar `name`. Leaves `value` unchanged if there is no such scalar.
template <typename T>
void read_scalar(const Scalars& scalars, const std::string& name, T& value) {
  if (const T* found = find<T>(scalars, name)) value = *found;
}

/// The scaling with the name in the scalar rope_scaling.
RopeScaling scaling_of(const std::string& given) {
  using enum RopeScaling;
  for (const RopeScaling scaling : {kNone, kLinear, kDynamic, kYarn, kLlama3}) {
    if (given == name(scaling)) return scaling;
  }
  throw UsageError(fmt::format(
      "the checkpoint's scalar rope_scaling is {}: expected none, linear, dynamic, yarn or llama3.", describe(given)));
}

void read_rope(const Scalars& scalars, Rope& rope) {
  rope.theta = Rope().theta;
  if (const auto* factor = find<int64_t>(scalars, kLegacyRopeFactorName))
    rope = {.scaling = *factor == 1 ? RopeScaling::kNone : RopeScaling::kLlama3,
            .factor = static_cast<double>(*factor)};
  read_scalar(scalars, "rope_theta", rope.theta);
  const auto* scaling = find<std::string>(scalars, "rope_scaling");
  if (scaling == nullptr) return;
  rope = {.theta = rope.theta, .scaling = scaling_of(*scaling)};
  read_scalar(scalars, "rope_factor", rope.factor);
  read_scalar(scalars, "rope_low_freq_factor", rope.low_freq_factor);
  read_scalar(scalars, "rope_high_freq_factor", rope.high_freq_factor);
  read_scalar(scalars, "rope_original_context", rope.original_context);
  read_scalar(scalars, "rope_beta_fast", rope.beta_fast);
  read_scalar(scalars, "rope_beta_slow", rope.beta_slow);
  read_scalar(scalars, "rope_attention_factor", rope.attention_factor);
  int64_t truncate = rope.truncate ? 1 : 0;
  read_scalar(scalars, "rope_truncate", truncate);
  rope.truncate = truncate != 0;
}

void add_rope(const Rope& rope, Scalars& scalars) {
  scalars["rope_theta"] = rope.theta;
  scalars["rope_scaling"] = std::string(name(rope.scaling));
  if (rope.scaling == RopeScaling::kNone) return;
  scalars["rope_factor"] = rope.factor;
  if (rope.scaling == RopeScaling::kLlama3) {
    scalars["rope_low_freq_factor"] = rope.low_freq_factor;
    scalars["rope_high_freq_factor"] = rope.high_freq_factor;
    scalars["rope_original_context"] = rope.original_context;
  }
  if (rope.scaling != RopeScaling::kYarn) return;
  scalars["rope_original_context"] = rope.original_context;
  scalars["rope_beta_fast"] = rope.beta_fast;
  scalars["rope_beta_slow"] = rope.beta_slow;
  scalars["rope_attention_factor"] = rope.attention_factor;
  scalars["rope_truncate"] = int64_t{rope.truncate};
}

/// The scalar window_layers has one digit for each layer, 1 for a layer with a window; or it is "all".
constexpr const char* kAllLayers = "all";

std::string text_of_layers(const std::vector<bool>& layers) {
  std::string text = layers.empty() ? kAllLayers : "";
  for (const bool has_window : layers) text += has_window ? '1' : '0';
  return text;
}

void read_window(const Scalars& scalars, ModelShape& shape) {
  shape.window = 0;
  shape.window_layers.clear();
  read_scalar(scalars, "window", shape.window);
  std::string layers = kAllLayers;
  read_scalar(scalars, "window_layers", layers);
  if (layers == kAllLayers) return;
  if (layers.find_first_not_of("01") != std::string::npos)
    throw UsageError(fmt::format("the checkpoint's scalar window_layers is {}: expected {}, or 0 or 1 for each layer.",
                                 describe(layers), kAllLayers));
  for (const char letter : layers) shape.window_layers.push_back(letter == '1');
}

/// Sets the fields of `shape` from `scalars`. Older versions of Aliquot did not write all scalars. A field without a
/// scalar gets the value that these versions used in training.
void read_scalars(const Scalars& scalars, ModelShape& shape) {
  read_scalar(scalars, "heads", shape.heads);
  shape.norm_epsilon = ModelShape().norm_epsilon;
  read_scalar(scalars, "norm_epsilon", shape.norm_epsilon);
  if (shape.family != ModelFamily::kLlama) return;
  read_scalar(scalars, "context", shape.context);
  read_rope(scalars, shape.rope);
  read_window(scalars, shape);
}

/// Sets kv_heads and the width of a head from the number of heads. Messages use `name` for this number.
void split_into_heads(const ParameterExtents& extents, ModelShape& shape, const char* name) {
  const auto [query_width, key_width] = std::pair(extents.query_width, extents.key_width);
  if (shape.heads < 1 || query_width % shape.heads != 0)
    throw UsageError(fmt::format("{} {} does not divide the width {}: use another number of heads.", name, shape.heads,
                                 query_width));
  shape.set_head_width(query_width / shape.heads);
  if (key_width % shape.head_width() != 0) {
    throw UsageError(
        fmt::format("{} {} gives heads of {} elements, and the total width of the keys, {}, is not a multiple of that: "
                    "use another number of heads.",
                    name, shape.heads, shape.head_width(), key_width));
  }
  shape.kv_heads = key_width / shape.head_width();
}

ModelShape complete_shape(const ParameterExtents& extents, const Scalars& scalars, std::optional<int64_t> heads) {
  constexpr int64_t kDefaultContext = 8192;
  ModelShape shape = extents.shape;
  const ModelShape* preset = find_similar_preset(shape);
  if (shape.family == ModelFamily::kLlama) {
    shape.context = preset == nullptr ? kDefaultContext : preset->context;
    if (preset != nullptr) shape.rope = preset->rope;
  }
  read_scalars(scalars, shape);
  if (heads && records_shape(scalars) && *heads != shape.heads)
    throw UsageError(
        fmt::format("--heads {1} contradicts the checkpoint (heads {0}): leave --heads out.", shape.heads, *heads));
  if (!records_shape(scalars)) shape.heads = heads.value_or(preset == nullptr ? 0 : preset->heads);
  if (shape.heads == 0 && !records_shape(scalars) && !heads) return shape;  // the number of heads is unknown
  split_into_heads(extents, shape, heads ? "--heads" : "heads");
  check(shape, kScalarNames);
  return shape;
}

}  // namespace

Scalars shape_scalars(const ModelShape& shape) {
  Scalars scalars{{"heads", shape.heads}, {"norm_epsilon", shape.norm_epsilon}};
  if (shape.family != ModelFamily::kLlama) return scalars;
  scalars["context"] = shape.context;
  add_rope(shape.rope, scalars);
  scalars["window"] = shape.window;
  if (shape.window != 0) scalars["window_layers"] = text_of_layers(shape.window_layers);
  return scalars;
}

bool records_shape(const Scalars& scalars) { return scalars.contains("heads"); }

std::vector<NamedShape> parameters_of(const Manifest& manifest) {
  constexpr std::string_view kParameters = "parameters/";
  std::vector<NamedShape> parameters;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.path.starts_with(kParameters))
      parameters.emplace_back(tensor.path.substr(kParameters.size()), tensor.shape);
  }
  return parameters;
}

std::optional<ModelShape> saved_shape(const Manifest& manifest, const std::string& where,
                                      std::optional<int64_t> heads) {
  return saved_shape(parameters_of(manifest), manifest.scalars, where, heads);
}

std::optional<ModelShape> saved_shape(std::span<const NamedShape> parameters, const Scalars& scalars,
                                      const std::string& where, std::optional<int64_t> heads) {
  const auto extents = extents_of(parameters);
  if (!extents) return std::nullopt;
  try {
    return complete_shape(*extents, scalars, heads);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
}

std::vector<ShapeDifference> shape_differences(const Scalars& scalars, const ModelShape& shape) {
  if (!records_shape(scalars)) return {};
  ModelShape saved = shape;
  read_scalars(scalars, saved);
  const Scalars saved_scalars = shape_scalars(saved);
  std::vector<ShapeDifference> differences;
  for (const auto& [name, given] : shape_scalars(shape)) {
    const auto found = saved_scalars.find(name);
    if (found != saved_scalars.end() && found->second != given) differences.push_back({name, found->second, given});
  }
  return differences;
}

}  // namespace aliquot
