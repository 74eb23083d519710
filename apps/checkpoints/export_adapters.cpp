#include "apps/checkpoints/export_adapters.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/checkpoints/base_weights.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "apps/data/whole_file.h"
#include "apps/models/hugging_face/config.h"
#include "apps/models/hugging_face/weights.h"
#include "apps/options/arguments.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/difference.h"
#include "checkpoint/file/convert.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/export_weights.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/", kWeight = ".weight";

/// A row-major matrix.
struct Matrix2 {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};

Matrix2 transposed(const Matrix2& m) {
  Matrix2 t{m.columns, m.rows, std::vector<float>(m.values.size())};
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.columns; ++c)
      t.values[static_cast<size_t>(c * m.rows + r)] = m.values[static_cast<size_t>(r * m.columns + c)];
  }
  return t;
}

/// Reads the adapter matrix `name`; nullopt if the checkpoint does not contain it.
std::optional<Matrix2> find_matrix(const CheckpointReader& reader, const std::string& name) {
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (tensor.path != std::string(kParameters) + name) continue;
    if (tensor.shape.size() != 2 || !is_convertible(DType::kFloat32, tensor.dtype))
      throw UsageError(fmt::format("the checkpoint's tensor {} is not a matrix of numbers", printable(name)));
    Matrix2 matrix{tensor.shape[0], tensor.shape[1], {}};
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes));
    matrix.values.resize(static_cast<size_t>(matrix.rows * matrix.columns));
    reader.read(bytes, tensor.file_offset);
    convert(DType::kFloat32, std::as_writable_bytes(std::span(matrix.values)).data(), tensor.dtype, bytes.data(),
            std::ssize(matrix.values));
    return matrix;
  }
  return std::nullopt;
}

/// The change of a weight: factor * left * right, in the layout of the weight.
struct WeightChange {
  Matrix2 left, right;
  float factor = 0;

  /// Adds the elements from `first` on to `values`. Skips each term with a zero in `left`.
  void add_to(int64_t first, std::span<float> values) const {
    const int64_t width = right.columns, last = first + std::ssize(values);
    for (int64_t row = first / width; row * width < last; ++row) {
      const int64_t begin = std::max(first, row * width), end = std::min(last, (row + 1) * width);
      std::vector<float> sums(static_cast<size_t>(end - begin));
      for (int64_t k = 0; k < left.columns; ++k) {
        const float coefficient = left.values[static_cast<size_t>(row * left.columns + k)];
        const float* from = right.values.data() + k * width + (begin - row * width);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += coefficient * from[i];
      }
      for (size_t i = 0; i < sums.size(); ++i) values[static_cast<size_t>(begin - first) + i] += factor * sums[i];
    }
  }
};

/// Returns the change of the parameter `name`; nullopt if it has no adapter. GPT-2 stores weights as
/// [inputs, outputs], and Llama as [outputs, inputs].
std::optional<WeightChange> change_of(const CheckpointReader& reader, const BaseWeights::Tensor& tensor,
                                      const LoraOption& lora, bool inputs_first) {
  if (!tensor.name.ends_with(kWeight)) return std::nullopt;
  const std::string path = tensor.name.substr(0, tensor.name.size() - kWeight.size());
  const auto a = find_matrix(reader, path + std::string(kLoraA)), b = find_matrix(reader, path + std::string(kLoraB));
  if (!a || !b) return std::nullopt;
  WeightChange change{inputs_first ? transposed(*a) : *b, inputs_first ? transposed(*b) : *a,
                      static_cast<float>(lora.alpha / static_cast<double>(lora.rank))};
  return change;
}

bool is_gpt2(const Manifest& manifest) {
  return std::ranges::any_of(manifest.tensors,
                             [](const TensorEntry& tensor) { return tensor.path.starts_with("parameters/h."); });
}

/// The weights to which the adapters belong, and their shape.
struct Base {
  std::string path;
  std::optional<ModelShape> shape;
  BaseWeights weights;

  Base(const std::string& at, const std::map<std::string, Scalar>& scalars)
      : path(at), shape(shape_of_base(at, scalars)), weights(at, shape && !shape->tied) {}
};

/// The config.json of merged weights in `out`: that of the base, with the type of the written weights. Returns "" if
/// the base has none and its shape is not known. If the end-of-text token is missing, it is that of the tokenizer.
std::string merged_config(const Base& base, const std::filesystem::path& out, DType dtype) {
  if (const auto config = find_config_near(base.path); config && is_weights_path(base.path)) {
    Json json = Json::parse(read_whole_file(*config, 16));
    json.erase("dtype");
    json["torch_dtype"] = std::string(name(dtype));
    return with_end_token(json.dump(2) + "\n", out);
  }
  if (!base.shape || base.shape->heads == 0) return "";
  return with_tokens_of_tokenizer(config_text(*base.shape, name(dtype)), out);
}

/// Throws UsageError if the base has no weight for an adapter, or one of another shape.
void require_fitting_adapters(const Manifest& manifest, const std::string& where, const Base& base) {
  std::map<std::string, std::vector<int64_t>> of_base, of_adapters;
  for (const BaseWeights::Tensor& tensor : base.weights.tensors()) of_base[tensor.name] = tensor.shape;
  for (const auto& [name, shape] : parameters_of(manifest)) of_adapters[name] = shape;
  for (const auto& [name, shape] : of_adapters) {
    if (!name.ends_with(kLoraA)) continue;
    const std::string layer = name.substr(0, name.size() - kLoraA.size());
    std::vector<int64_t> expected{of_adapters.at(layer + std::string(kLoraB))[0], shape[1]};
    if (is_gpt2(manifest)) std::ranges::reverse(expected);
    const auto found = of_base.find(layer + std::string(kWeight));
    if (found != of_base.end() && found->second == expected) continue;
    throw UsageError(
        fmt::format("{}: the adapter of {} needs a weight of shape [{}], and the base {} has {}.", where,
                    printable(layer), fmt::join(expected, ", "), base.path,
                    found == of_base.end() ? "none" : fmt::format("[{}]", fmt::join(found->second, ", "))));
  }
}

/// Throws UsageError if the adapters do not belong to the base. The digest of the base covers only its tensors.
void require_base(const CheckpointOptions& options, const CheckpointReader& reader, const SavedAdapters& adapters,
                  const Base& base) {
  require_same_base(adapters, options.paths[0], base.path, digest_of_base(base.weights));
  require_fitting_adapters(reader.manifest(), options.paths[0], base);
  if (!base.shape || base.shape->heads == 0) return;
  for (const ShapeDifference& one : shape_differences(reader.manifest().scalars, *base.shape)) {
    throw UsageError(fmt::format("{} has adapters of a model with {} {}, but the base {} has {}.", options.paths[0],
                                 one.name, describe(one.saved), base.path, describe(one.given)));
  }
}

int export_merged(const CheckpointOptions& options, const CheckpointReader& reader, const SavedAdapters& adapters,
                  const Base& base) {
  std::vector<ExportedTensor> tensors;
  int64_t merged = 0;
  for (const BaseWeights::Tensor& tensor : base.weights.tensors()) {
    auto change = change_of(reader, tensor, adapters.lora, is_gpt2(reader.manifest()));
    if (change) ++merged;
    tensors.push_back({tensor.name, tensor.shape, DType::kFloat32,
                       [&tensor, change = std::move(change)](int64_t first, int64_t count, std::byte* to) {
                         const std::span values(reinterpret_cast<float*>(to), static_cast<size_t>(count));
                         tensor.read(first, values);
                         if (change) change->add_to(first, values);
                       }});
  }
  const std::filesystem::path out = options.out;
  write_stdout("{}: {} bytes, {} adapters merged\n", (out / kWeightsFile).string(),
               export_tensors(tensors, out, kWeightsFile, options.dtype), merged);
  copy_tokenizer(options.paths[0], out);
  copy_tokenizer(base.path, out);
  const std::string config = merged_config(base, out, options.dtype);
  if (config.empty()) {
    warn("no {} was written, because the base has none.", kConfigFile);
    return 0;
  }
  write_file_atomically(out, kConfigFile, config);
  write_stdout("{}\n", (out / kConfigFile).string());
  return 0;
}

/// The names of target_modules for PEFT. It adapts all modules whose paths end in one of them, and GPT-2 has two
/// modules c_proj.
std::vector<std::string> target_modules(const Lora& lora, ModelFamily family) {
  std::vector<std::string> modules;
  for (const ProjectionNames& names : projections_of(family)) {
    if (!lora.adapts(names.projection)) continue;
    const std::string path(names.path), last = path.substr(path.rfind('.') + 1);
    modules.push_back(last == "c_proj" ? path : last);
  }
  return modules;
}

std::string adapter_config(const LoraOption& lora, ModelFamily family, const std::string& base) {
  const auto whole = static_cast<int64_t>(std::lround(lora.alpha));
  const Json alpha = static_cast<double>(whole) == lora.alpha ? Json(whole) : Json(lora.alpha);
  const Json json{{"peft_type", "LORA"},
                  {"task_type", "CAUSAL_LM"},
                  {"base_model_name_or_path", base},
                  {"r", lora.rank},
                  {"lora_alpha", alpha},
                  {"lora_dropout", 0.0},
                  {"target_modules", target_modules(lora_of(lora, family), family)},
                  {"bias", "none"},
                  {"fan_in_fan_out", family == ModelFamily::kGpt2},
                  {"init_lora_weights", true},
                  {"inference_mode", true},
                  {"modules_to_save", nullptr},
                  {"use_rslora", false}};
  return json.dump(2) + "\n";
}

int export_in_format_of_peft(const CheckpointOptions& options, const CheckpointReader& reader,
                             const SavedAdapters& adapters, const std::string& base) {
  const bool gpt2 = is_gpt2(reader.manifest());
  const std::string prefix = gpt2 ? "base_model.model.transformer." : "base_model.model.";
  std::vector<ExportedTensor> tensors;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (!tensor.path.starts_with(kParameters)) continue;
    tensors.push_back({prefix + tensor.path.substr(kParameters.size()), tensor.shape, tensor.dtype,
                       [&](int64_t first, int64_t count, std::byte* to) {
                         const int64_t width = element_bytes(tensor.dtype);
                         reader.read(std::span(to, static_cast<size_t>(count * width)),
                                     tensor.file_offset + first * width);
                       }});
  }
  const std::filesystem::path out = options.out;
  write_stdout("{}: {} bytes\n", (out / kAdapterFile).string(),
               export_tensors(tensors, out, kAdapterFile, options.dtype));
  write_file_atomically(out, kAdapterConfigFile,
                        adapter_config(adapters.lora, gpt2 ? ModelFamily::kGpt2 : ModelFamily::kLlama, base));
  write_stdout("{}\n", (out / kAdapterConfigFile).string());
  return 0;
}

}  // namespace

int export_adapters(const CheckpointOptions& options, const CheckpointReader& reader, const SavedAdapters& adapters) {
  if (options.lora.empty()) {
    throw UsageError(
        fmt::format("{} contains only adapters of {}: give --lora merged, for weights that include them, or --lora "
                    "adapter, for the format of PEFT.",
                    options.paths[0], adapters.base));
  }
  check_adapter_tensors(reader.manifest(), adapters, options.paths[0]);
  const std::string path = options.base.empty() ? adapters.base : options.base;
  const bool writes_adapters = options.lora == "adapter";
  if (writes_adapters && options.base.empty()) return export_in_format_of_peft(options, reader, adapters, path);
  refuse_adapters_of_peft(path, options.base.empty() ? path : "--base " + path);
  if (!is_weights_path(path) && !find_checkpoint(path)) {
    throw UsageError(fmt::format("{} has adapters of {}, and there are no weights{}: name them with --base DIR.",
                                 options.paths[0], adapters.base, options.base.empty() ? "" : " at " + path));
  }
  const Base base(path, reader.manifest().scalars);
  require_base(options, reader, adapters, base);
  if (writes_adapters) return export_in_format_of_peft(options, reader, adapters, path);
  return export_merged(options, reader, adapters, base);
}

}  // namespace aliquot
