#include "apps/checkpoints/saved_shape.h"

#include <fmt/format.h>

#include "apps/models/hugging_face/weights.h"
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

void read_rope(const Scalars& scalars, Rope& rope) {
  rope.theta = Rope().theta;
  if (const auto* factor = find<int64_t>(scalars, kLegacyRopeFactorName))
    rope = {.scaling = *factor == 1 ? RopeScaling::kNone : RopeScaling::kLlama3,
            .factor = static_cast<double>(*factor)};
  read_scalar(scalars, "rope_theta", rope.theta);
  const auto* scaling = find<std::string>(scalars, "rope_scaling");
  if (scaling == nullptr) return;
  rope = {.theta = rope.theta};
  if (*scaling == name(RopeScaling::kNone)) return;
  if (*scaling != name(RopeScaling::kLlama3))
    throw UsageError(
        fmt::format("the checkpoint's scalar rope_scaling is {}: expected none or llama3.", describe(*scaling)));
  rope.scaling = RopeScaling::kLlama3;
  read_scalar(scalars, "rope_factor", rope.factor);
  read_scalar(scalars, "rope_low_freq_factor", rope.low_freq_factor);
  read_scalar(scalars, "rope_high_freq_factor", rope.high_freq_factor);
  read_scalar(scalars, "rope_original_context", rope.original_context);
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
}

std::vector<NamedShape> parameters_of(const Manifest& manifest) {
  constexpr std::string_view kParameters = "parameters/";
  std::vector<NamedShape> parameters;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.path.starts_with(kParameters))
      parameters.emplace_back(tensor.path.substr(kParameters.size()), tensor.shape);
  }
  return parameters;
}

/// Converts shape.kv_heads from the total width of the keys to a number of heads. `name` is the name that messages use
/// for the number of heads.
void split_into_heads(ModelShape& shape, const char* name) {
  const int64_t key_width = shape.kv_heads;
  if (shape.heads < 1 || shape.width % shape.heads != 0)
    throw UsageError(fmt::format("{} {} does not divide the width {}: use another number of heads.", name, shape.heads,
                                 shape.width));
  if (shape.family == ModelFamily::kLlama && key_width % shape.head_width() != 0) {
    throw UsageError(
        fmt::format("{} {} gives heads of {} elements, and the total width of the keys, {}, is not a multiple of that: "
                    "use another number of heads.",
                    name, shape.heads, shape.head_width(), key_width));
  }
  shape.kv_heads = shape.family == ModelFamily::kLlama ? key_width / shape.head_width() : shape.heads;
}

ModelShape complete_shape(ModelShape shape, const Scalars& scalars, std::optional<int64_t> heads) {
  constexpr int64_t kDefaultContext = 8192;
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
  split_into_heads(shape, heads ? "--heads" : "heads");
  check(shape, kScalarNames);
  return shape;
}

}  // namespace

Scalars shape_scalars(const ModelShape& shape) {
  Scalars scalars{{"heads", shape.heads}, {"norm_epsilon", shape.norm_epsilon}};
  if (shape.family != ModelFamily::kLlama) return scalars;
  scalars["context"] = shape.context;
  scalars["rope_theta"] = shape.rope.theta;
  scalars["rope_scaling"] = std::string(name(shape.rope.scaling));
  if (shape.rope.scaling == RopeScaling::kNone) return scalars;
  scalars["rope_factor"] = shape.rope.factor;
  scalars["rope_low_freq_factor"] = shape.rope.low_freq_factor;
  scalars["rope_high_freq_factor"] = shape.rope.high_freq_factor;
  scalars["rope_original_context"] = shape.rope.original_context;
  return scalars;
}

bool records_shape(const Scalars& scalars) { return scalars.contains("heads"); }

std::optional<ModelShape> saved_shape(const Manifest& manifest, const std::string& where,
                                      std::optional<int64_t> heads) {
  const auto extents = shape_of(parameters_of(manifest));
  if (!extents) return std::nullopt;
  try {
    return complete_shape(*extents, manifest.scalars, heads);
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
