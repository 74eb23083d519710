#include "apps/checkpoints/saved_adapters.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <system_error>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/models/hugging_face/config.h"
#include "checkpoint/difference.h"
#include "checkpoint/file/convert.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

constexpr const char *kRank = "lora_rank", *kAlpha = "lora_alpha", *kTargets = "lora_targets", *kBase = "base",
                     *kBaseDigest = "base_digest";

template <typename T>
const T& require_scalar(const std::map<std::string, Scalar>& scalars, const std::string& name) {
  const auto found = scalars.find(name);
  if (found == scalars.end())
    throw UsageError(fmt::format("the checkpoint has the scalar {}, but not {}: expected both.", kRank, name));
  const auto* value = std::get_if<T>(&found->second);
  if (value != nullptr) return *value;
  throw UsageError(
      fmt::format("the checkpoint's scalar {} is {}, which has the wrong type.", name, describe(found->second)));
}

/// The linear layer that an adapter matrix belongs to.
struct AdapterName {
  Projection projection;
  std::string layer;  // "h.0.attn.c_attn"
  bool is_b;
};

std::optional<AdapterName> parse_adapter_name(const std::string& parameter, ModelFamily family) {
  if (!is_adapter(parameter)) return std::nullopt;
  const bool is_b = parameter.ends_with(kLoraB);
  AdapterName name{{}, parameter.substr(0, parameter.size() - (is_b ? kLoraB : kLoraA).size()), is_b};
  for (const ProjectionNames& one : projections_of(family)) {
    name.projection = one.projection;
    if (name.layer.ends_with(fmt::format(".{}", one.path))) return name;
  }
  return std::nullopt;
}

Lora lora_of_family(const SavedAdapters& adapters, ModelFamily family, const std::string& where) {
  try {
    return lora_of(adapters.lora, family);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: its adapters cannot be used: {}", where, error.what()));
  }
}

ModelFamily family_of(const std::vector<NamedShape>& parameters) {
  const bool is_gpt2 =
      std::ranges::any_of(parameters, [](const NamedShape& named) { return named.first.starts_with("h."); });
  return is_gpt2 ? ModelFamily::kGpt2 : ModelFamily::kLlama;
}

}  // namespace

std::map<std::string, Scalar> adapter_scalars(const SavedAdapters& adapters) {
  return {{kRank, adapters.lora.rank},
          {kAlpha, adapters.lora.alpha},
          {kTargets, fmt::format("{}", fmt::join(adapters.lora.targets, ","))},
          {kBase, adapters.base},
          {kBaseDigest, adapters.base_digest}};
}

std::optional<SavedAdapters> saved_adapters(const std::map<std::string, Scalar>& scalars, const std::string& where) {
  if (!scalars.contains(kRank)) return std::nullopt;
  try {
    // Parsing the text of the option checks the ranges.
    const std::string text =
        fmt::format("rank={},alpha={},targets={}", require_scalar<int64_t>(scalars, kRank),
                    require_scalar<double>(scalars, kAlpha), require_scalar<std::string>(scalars, kTargets));
    return SavedAdapters{parse_lora(text), require_scalar<std::string>(scalars, kBase),
                         require_scalar<std::string>(scalars, kBaseDigest)};
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: its adapters cannot be used: {}", where, error.what()));
  }
}

std::optional<SavedAdapters> find_saved_adapters(const std::string& path) {
  const auto found = find_checkpoint(path);
  if (!found) return std::nullopt;
  std::optional<Manifest> manifest;
  try {
    manifest = read_manifest(*found);
  } catch (const CheckpointError&) {
    return std::nullopt;  // code that loads the checkpoint reports the error
  }
  auto adapters = saved_adapters(manifest->scalars, found->string());
  if (adapters) check_adapter_tensors(*manifest, *adapters, found->string());
  return adapters;
}

void check_adapter_tensors(const Manifest& manifest, const SavedAdapters& adapters, const std::string& where) {
  const std::vector<NamedShape> parameters = parameters_of(manifest);
  const ModelFamily family = family_of(parameters);
  const Lora lora = lora_of_family(adapters, family, where);
  std::map<Projection, int64_t> blocks;  // the number of layers with a matrix A, for each projection
  std::set<std::string> names;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.path.starts_with("parameters/") && !is_convertible(DType::kFloat32, tensor.dtype))
      throw UsageError(fmt::format("{}: the tensor {} has the type {}: expected floating-point numbers.", where,
                                   printable(tensor.path), name(tensor.dtype)));
  }
  for (const auto& [name, shape] : parameters) {
    const auto adapter = parse_adapter_name(name, family);
    if (!adapter || !lora.adapts(adapter->projection)) {
      throw UsageError(fmt::format("{}: the tensor {} is not part of an adapter of --lora {}.", where, printable(name),
                                   lora_text(adapters.lora)));
    }
    if (shape.size() != 2 || shape[adapter->is_b ? 1 : 0] != lora.rank) {
      throw UsageError(fmt::format("{}: the tensor {} has the shape [{}]: expected a matrix of rank {}.", where,
                                   printable(name), fmt::join(shape, ", "), lora.rank));
    }
    names.insert(name);
    if (!adapter->is_b) ++blocks[adapter->projection];
  }
  for (const std::string& name : names) {
    const AdapterName adapter = *parse_adapter_name(name, family);
    const std::string other = adapter.layer + std::string(adapter.is_b ? kLoraA : kLoraB);
    if (!names.contains(other))
      throw UsageError(fmt::format("{}: it has the tensor {}, but not {}.", where, printable(name), printable(other)));
  }
  for (const ProjectionNames& one : projections_of(family)) {
    if (!lora.adapts(one.projection) || (!blocks.empty() && blocks[one.projection] == blocks.begin()->second)) continue;
    throw UsageError(fmt::format("{}: the adapters of {} are not complete.", where, one.path));
  }
}

std::optional<ModelShape> shape_of_base(const std::string& base, const std::map<std::string, Scalar>& scalars) {
  if (!is_weights_path(base)) {
    const std::filesystem::path path = require_checkpoint(base);
    const Manifest manifest = read_manifest(path);
    return saved_shape(parameters_of(manifest), records_shape(manifest.scalars) ? manifest.scalars : scalars, base);
  }
  if (const auto config = find_config_near(base)) return read_model_config(*config).shape;
  std::vector<NamedShape> parameters;
  const WeightFiles weights = WeightFiles::open(FileSystem::system(), base);
  for (const WeightTensor& tensor : weights.tensors()) parameters.emplace_back(tensor.name, tensor.entry->shape);
  return saved_shape(parameters, scalars, base);
}

void require_same_base(const SavedAdapters& adapters, const std::string& where, const std::string& path,
                       const std::string& digest) {
  if (digest == adapters.base_digest) return;
  throw UsageError(fmt::format(
      "{} has adapters of other weights than {}: their digest is {}, and that of {} was {}: use the weights "
      "from which the adapters were trained.",
      where, path, digest.substr(0, 16), adapters.base, adapters.base_digest.substr(0, 16)));
}

void refuse_adapters_of_peft(const std::string& path, const std::string& given) {
  const std::filesystem::path at = path;
  std::error_code ignored;
  const bool is_in_folder = !is_weights_path(path) && (std::filesystem::exists(at / kAdapterConfigFile, ignored) ||
                                                       std::filesystem::exists(at / kAdapterFile, ignored));
  if (!is_in_folder && at.filename() != kAdapterFile) return;
  throw UsageError(fmt::format(
      "{}: these are adapters in the format of PEFT, not the weights of a model: merge them into their base "
      "with merge_and_unload() of PEFT, or use the checkpoint from which they were exported.",
      given));
}

}  // namespace aliquot
