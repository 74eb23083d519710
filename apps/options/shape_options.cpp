#include "apps/options/shape_options.h"

#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/models/hugging_face/config.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr IntegerRange kExtentRange{1, int64_t{1} << 31};
// A plan takes about 15 KiB of host memory for each layer.
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr std::array kTiedWords{EnumName{"on", true}, EnumName{"off", false}};

struct ExtentFlag {
  std::optional<int64_t> ShapeOptions::*given;
  int64_t ModelShape::*extent;
  std::string_view ShapeNames::*name;
};
constexpr std::array kExtentFlags = {
    ExtentFlag{&ShapeOptions::layers, &ModelShape::layers, &ShapeNames::layers},
    ExtentFlag{&ShapeOptions::width, &ModelShape::width, &ShapeNames::width},
    ExtentFlag{&ShapeOptions::heads, &ModelShape::heads, &ShapeNames::heads},
    ExtentFlag{&ShapeOptions::kv_heads, &ModelShape::kv_heads, &ShapeNames::kv_heads},
    ExtentFlag{&ShapeOptions::hidden, &ModelShape::hidden, &ShapeNames::hidden},
    ExtentFlag{&ShapeOptions::context, &ModelShape::context, &ShapeNames::context},
    ExtentFlag{&ShapeOptions::vocabulary, &ModelShape::vocabulary, &ShapeNames::vocabulary},
};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) names.emplace_back(preset.name);
  return names;
}

std::string parse_model_name(const std::string& model) {
  const std::string_view kind = unsupported_kind(model);
  if (kind.empty()) return parse_choice(model, model_names());
  throw UsageError(
      fmt::format("invalid value '{}': {} models are not supported, only GPT-2, Llama, Mistral, Qwen2 and Qwen3: "
                  "expected one of {}, or the path of a config.json.",
                  model, kind, fmt::join(model_names(), ", ")));
}

bool is_path(const std::string& model) {
  if (find_model_preset(model) != nullptr) return false;
  std::error_code error;
  return model.find('/') != std::string::npos || model.ends_with(".json") || std::filesystem::exists(model, error);
}

/// Returns the name of the first field in which `a` and `b` differ, not counting the fields in kExtentFlags. Returns ""
/// if no such field differs.
std::string differing_fields(const ModelShape& a, const ModelShape& b) {
  if (a.family != b.family) return "the kind of model";
  if (a.tied != b.tied) return "tie_word_embeddings";
  if (a.norm_epsilon != b.norm_epsilon) return "norm epsilon";
  if (a.rope != b.rope) return "RoPE";
  if (a.own_head_width != b.own_head_width) return "head_dim";
  if (a.qkv_bias != b.qkv_bias || a.output_bias != b.output_bias) return "the biases of attention";
  if (a.qk_norm != b.qk_norm) return "the norms of queries and keys";
  return a.window == b.window && a.window_layers == b.window_layers ? "" : "the sliding window";
}

/// Throws UsageError if any field of the shape of --model differs from `shape`.
void check_same_model(const ShapeOptions& given, const ModelShape& shape, const std::string& where,
                      const ShapeNames& names, bool allow_more_layers) {
  const ModelShape given_shape = model_shape(given);
  for (const ExtentFlag& flag : kExtentFlags) {
    const int64_t own = given_shape.*flag.extent, other = shape.*flag.extent;
    if (own == other || (allow_more_layers && flag.extent == &ModelShape::layers && own > other)) continue;
    throw UsageError(fmt::format("--model {} ({} {}) contradicts {} ({} {}): leave --model out.", given.model,
                                 kShapeFlags.*flag.name, own, where, names.*flag.name, other));
  }
  const std::string other = differing_fields(given_shape, shape);
  if (other.empty()) return;
  throw UsageError(fmt::format("--model {} ({}) contradicts {} ({}): {} differs; leave --model out.", given.model,
                               numbers_text(given_shape), where, numbers_text(shape), other));
}

}  // namespace

void set_model(ShapeOptions& o, const std::string& model) {
  o.file_shape.reset();
  o.file_head_width = 0;
  o.remarks.clear();
  if (is_path(model)) {
    std::error_code error;
    const std::filesystem::path path(model);
    ModelConfig config = read_model_config(std::filesystem::is_directory(path, error) ? path / kConfigFile : path);
    o.file_shape = config.shape;
    o.file_head_width = config.head_width;
    o.remarks = std::move(config.remarks);
  }
  o.model = is_path(model) ? model : parse_model_name(model);
}

void add_sequence_parallel(OptionTable& t, ShapeOptions& o) {
  t.toggle("sequence-parallel", o.sequence_parallel,
           "With --tensor, the ranks of a tensor group also divide the tokens in norms and in the residual stream.");
}

void add_attention(OptionTable& t, ShapeOptions& o) {
  static constexpr std::array kWords{EnumName{"own", AttentionKernels::kOwn},
                                     EnumName{"cudnn", AttentionKernels::kCudnn}};
  t.choice("attention", o.attention, kWords,
           "Kernels of attention on GPUs, in bf16 and fp16: those of this project, or those of cuDNN.");
}

TensorGroup tensor_group(const ShapeOptions& o, const EngineOptions& engine, int rank) {
  return {.ranks = engine.tensor,
          .rank = rank % engine.tensor,
          .sequence_parallel = o.sequence_parallel,
          .fixed_leaves = engine.reproducible};
}

void add_shape_options(OptionTable& t, ShapeOptions& o) {
  t.add({"model", "NAME|FILE",
         "One of " + joined(model_names()) +
             "; or the path of a Hugging Face config.json (GPT-2, Llama, Mistral, Qwen2 or Qwen3), or of its folder.",
         false, [&o](std::string_view text) { set_model(o, std::string(text)); },
         [&o]() -> OptionValue {
           if (!o.model.empty()) return o.model;
           return o.file_shape ? OptionValue() : OptionValue(kDefaultModel);
         }});
  t.count("layers", o.layers, {1, kMaxLayers}, "Number of transformer blocks; default: that of the model.");
  t.count("width", o.width, kExtentRange, "Width of the residual stream, in elements.");
  t.count("heads", o.heads, kExtentRange,
          "Attention heads; must divide the width, unless the config.json of the model has a head_dim.");
  t.count("kv-heads", o.kv_heads, kExtentRange,
          "Heads of keys and values (not for GPT-2); must divide the attention heads.");
  t.count("hidden", o.hidden, kExtentRange, "Hidden elements of a feed-forward layer.");
  t.count("context", o.context, kExtentRange, "Maximum length of a sequence.");
  t.count("vocab", o.vocabulary, kExtentRange, "Size of the vocabulary.");
  t.add({"lora", "rank=N,alpha=X,targets=LIST",
         "Freeze the weights and train only LoRA adapters. Defaults: rank=8, alpha=16, targets=all-linear. "
         "Targets: q, k, v, o, gate, up, down (with GPT-2 qkv, o, up, down), or names of PEFT such as q_proj.",
         false, [&o](std::string_view text) { o.lora = parse_lora(text); },
         [&o]() -> OptionValue { return o.lora.rank == 0 ? OptionValue() : OptionValue(lora_text(o.lora)); }});
  t.choice("tied", o.tied, kTiedWords, "Whether the head uses the token embedding; off: it has a table of its own.");
}

bool ShapeOptions::has_shape_options() const {
  return !model.empty() || layers || width || heads || kv_heads || hidden || context || vocabulary || tied;
}

ModelShape model_shape(const ShapeOptions& o) {
  ModelShape shape = o.file_shape ? *o.file_shape : find_model_preset(o.model.empty() ? kDefaultModel : o.model)->shape;
  const bool hidden_is_4x = shape.hidden == 4 * shape.width;
  shape.layers = o.layers.value_or(shape.layers);
  shape.width = o.width.value_or(shape.width);
  shape.heads = o.heads.value_or(shape.heads);
  if (o.file_head_width != 0) shape.set_head_width(o.file_head_width);
  const int64_t kv_default = shape.family == ModelFamily::kGpt2 ? shape.heads : shape.kv_heads;
  shape.kv_heads = o.kv_heads.value_or(kv_default);
  shape.hidden = o.hidden.value_or(hidden_is_4x ? 4 * shape.width : shape.hidden);
  shape.context = o.context.value_or(shape.context);
  shape.vocabulary = o.vocabulary.value_or(shape.vocabulary);
  shape.tied = o.tied.value_or(shape.tied);
  shape.lora = lora_of(o.lora, shape.family);
  check(shape);
  if (shape.layers > kMaxLayers)
    throw UsageError(
        fmt::format("the model has {} layers, but a plan can have at most {}: use fewer.", shape.layers, kMaxLayers));
  return shape;
}

std::string model_name(const ShapeOptions& o) {
  if (o.file_shape) return std::string(model_type(*o.file_shape));
  return o.model.empty() ? kDefaultModel : o.model;
}

void check_consistent(const ShapeOptions& given, const ModelShape& shape, const std::string& where,
                      const ShapeNames& names, bool allow_more_layers) {
  for (const ExtentFlag& flag : kExtentFlags) {
    const std::optional<int64_t>& own = given.*flag.given;
    const int64_t other = shape.*flag.extent;
    if (!own || *own == other || (allow_more_layers && flag.extent == &ModelShape::layers && *own > other)) continue;
    const std::string_view name = kShapeFlags.*flag.name;
    throw UsageError(fmt::format("{} {} contradicts {} ({} {}): leave {} out, or give {} {}.", name, *own, where,
                                 names.*flag.name, other, name, name, other));
  }
  if (given.tied && *given.tied != shape.tied)
    throw UsageError(fmt::format("--tied {} contradicts {} (tie_word_embeddings {}): leave --tied out.",
                                 *given.tied ? "on" : "off", where, shape.tied));
  if (!given.model.empty()) check_same_model(given, shape, where, names, allow_more_layers);
}

}  // namespace aliquot
