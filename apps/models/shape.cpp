#include "apps/models/shape.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr ModelShape gpt2(int64_t layers, int64_t width, int64_t heads) {
  return {ModelFamily::kGpt2, layers, width, heads, heads, 4 * width, 1024, 50257};
}

constexpr Rope llama3(double factor) { return {.scaling = RopeScaling::kLlama3, .factor = factor}; }

constexpr std::array kPresets = {
    ModelPreset{"gpt2-nano", {ModelFamily::kGpt2, 4, 128, 4, 4, 512, 128, 256}},
    ModelPreset{"gpt2-124m", gpt2(12, 768, 12)},
    ModelPreset{"gpt2-355m", gpt2(24, 1024, 16)},
    ModelPreset{"gpt2-774m", gpt2(36, 1280, 20)},
    ModelPreset{"gpt2-1.5b", gpt2(48, 1600, 25)},
    ModelPreset{"llama-nano", {ModelFamily::kLlama, 4, 128, 4, 2, 384, 128, 256}},
    ModelPreset{"llama-1b", {ModelFamily::kLlama, 16, 2048, 32, 8, 8192, 8192, 128256, llama3(32)}},
    ModelPreset{"llama-8b", {ModelFamily::kLlama, 32, 4096, 32, 8, 14336, 8192, 128256, llama3(8), false}},
    ModelPreset{"llama-70b", {ModelFamily::kLlama, 80, 8192, 64, 8, 28672, 8192, 128256, llama3(8), false}},
    ModelPreset{"llama-405b", {ModelFamily::kLlama, 126, 16384, 128, 8, 53248, 8192, 128256, llama3(8), false}},
};

void check_positive(std::string_view name, int64_t value) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (value >= 1 && value <= kLargest) return;
  throw UsageError(std::string(name) + " is " + std::to_string(value) + ": expected a number from 1 to 2147483648.");
}

void check_multiple(std::string_view name, int64_t value, std::string_view of_name, int64_t of) {
  if (value % of == 0) return;
  throw UsageError(std::string(name) + " " + std::to_string(value) + " is not a multiple of " + std::string(of_name) +
                   " " + std::to_string(of) + ": change one of them.");
}

void check_range(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return;
  throw UsageError(fmt::format("{} is {}: expected a number from {} to {}.", name, value, least, most));
}

void check_llama3(const Rope& rope, std::string_view low, std::string_view high) {
  check_range(low, rope.low_freq_factor, 1e-6, 1e6);
  check_range(high, rope.high_freq_factor, 1e-6, 1e6);
  if (rope.high_freq_factor > rope.low_freq_factor) return;
  throw UsageError(fmt::format("{} {} is not above {} {}: change one of them.", high, rope.high_freq_factor, low,
                               rope.low_freq_factor));
}

void check_rope(const ModelShape& shape, const ShapeNames& names) {
  const Rope& rope = shape.rope;
  const auto part = [](std::string_view name) { return fmt::format("the RoPE scaling's {}", name); };
  check_range(names.rope_theta, rope.theta, 1, 1e30);
  if (rope.scaling == RopeScaling::kNone) return;
  check_range(part("factor"), rope.factor, 1, 1e6);
  if (rope.scaling == RopeScaling::kLlama3) check_llama3(rope, part("low_freq_factor"), part("high_freq_factor"));
  if (rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn)
    check_positive(part("original_max_position_embeddings"), rope.original_context);
  if (rope.scaling == RopeScaling::kDynamic && shape.head_width() <= 2)
    throw UsageError(fmt::format("heads of {} elements do not work with dynamic RoPE scaling: expected more than 2.",
                                 shape.head_width()));
  if (rope.scaling != RopeScaling::kYarn) return;
  check_range(part("beta_fast"), rope.beta_fast, 1e-6, 1e6);
  check_range(part("beta_slow"), rope.beta_slow, 1e-6, 1e6);
  check_range(part("attention_factor"), rope.attention_factor, 1e-6, 1e6);
  if (rope.theta > 1) return;
  throw UsageError(fmt::format("{} is 1: expected more than 1 with yarn scaling.", names.rope_theta));
}

void check_window(const ModelShape& shape, const ShapeNames& names) {
  if (shape.window != 0) check_positive(names.window, shape.window);
  const auto count = static_cast<int64_t>(shape.window_layers.size());
  if (count == 0 || count == shape.layers) return;
  throw UsageError(
      fmt::format("{} lists the attention of {} layers, but the model has {} {}: leave {} out, or change {}.",
                  names.window_layers, count, names.layers, shape.layers, names.layers, names.window_layers));
}

void check_heads(const ModelShape& shape, const ShapeNames& names) {
  check_multiple(names.heads, shape.heads, names.kv_heads, shape.kv_heads);
  if (shape.own_head_width != 0) {
    check_positive(names.head_width, shape.own_head_width);
    if (shape.own_head_width % 2 == 0) return;
    throw UsageError(fmt::format("{} is {}: rotary position embedding needs an even number.", names.head_width,
                                 shape.own_head_width));
  }
  check_multiple(names.width, shape.width, names.heads, shape.heads);
  if (shape.family == ModelFamily::kLlama && shape.head_width() % 2 != 0) {
    throw UsageError(std::string(names.width) + " " + std::to_string(shape.width) + " and " + std::string(names.heads) +
                     " " + std::to_string(shape.heads) + " give a head width of " + std::to_string(shape.head_width()) +
                     ", but rotary position embedding needs an even one: change one of them.");
  }
}

// An exported model needs a model type. So a shape that no type has is rejected before training.
void check_kind(const ModelShape& s) {
  const bool all = s.qkv_bias && s.output_bias, none = !s.qkv_bias && !s.output_bias;
  const bool llama_only = all && !s.qk_norm, mistral = none && !s.qk_norm;
  const auto refuse = [](std::string_view what) {
    throw UsageError(fmt::format("no model type of transformers has {}: use the config.json of the weights.", what));
  };
  if (!s.qkv_bias && s.output_bias) refuse("a bias on o_proj but not on q_proj, k_proj and v_proj");
  if (s.qk_norm && !all && !none) refuse("QK norms and biases on q_proj, k_proj and v_proj but not on o_proj");
  if (llama_only && s.window != 0) refuse("sliding-window attention and a bias on o_proj, without QK norms");
  if (llama_only && s.width % s.heads != 0) refuse("heads that do not divide the width and a bias on o_proj");
  if (mistral && s.window != 0 && !s.window_layers.empty())
    refuse("sliding-window attention in only some layers, without biases or QK norms");
}

}  // namespace

std::string_view name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kDynamic: return "dynamic";
    case RopeScaling::kYarn: return "yarn";
    case RopeScaling::kLlama3: return "llama3";
  }
  return "none";
}

std::span<const ModelPreset> model_presets() { return kPresets; }

const ModelPreset* find_model_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &ModelPreset::name);
  return found == kPresets.end() ? nullptr : &*found;
}

std::string numbers_text(const ModelShape& shape) {
  std::string text = fmt::format("{} heads, norm epsilon {}", shape.heads, shape.norm_epsilon);
  if (shape.family != ModelFamily::kLlama) return text;
  if (shape.own_head_width != 0) text += fmt::format(", head width {}", shape.own_head_width);
  text += fmt::format(", RoPE theta {}", shape.rope.theta);
  if (shape.rope.scaling != RopeScaling::kNone)
    text += fmt::format(" with {} scaling by {}", name(shape.rope.scaling), shape.rope.factor);
  if (shape.window == 0) return text;
  text += fmt::format(", sliding window {}", shape.window);
  if (shape.window_layers.empty()) return text;
  return text + fmt::format(" in {} of {} layers", std::ranges::count(shape.window_layers, true), shape.layers);
}

std::string_view model_type(const ModelShape& shape) {
  if (shape.family == ModelFamily::kGpt2) return "gpt2";
  if (shape.qk_norm) return "qwen3";
  if (shape.qkv_bias && !shape.output_bias) return "qwen2";
  // transformers' Llama has no window, and rejects heads that do not divide the width.
  return shape.window != 0 || shape.width % shape.heads != 0 ? "mistral" : "llama";
}

void check(const ModelShape& shape, const ShapeNames& names) {
  check_positive(names.layers, shape.layers);
  check_positive(names.width, shape.width);
  check_positive(names.heads, shape.heads);
  check_positive(names.kv_heads, shape.kv_heads);
  check_positive(names.hidden, shape.hidden);
  check_positive(names.context, shape.context);
  check_positive(names.vocabulary, shape.vocabulary);
  check_range(names.norm_epsilon, shape.norm_epsilon, 1e-30, 1);
  check_heads(shape, names);
  check_rope(shape, names);
  check_window(shape, names);
  check_kind(shape);
  if (shape.family == ModelFamily::kGpt2 && shape.kv_heads != shape.heads) {
    throw UsageError(std::string(names.kv_heads) + " " + std::to_string(shape.kv_heads) + " does not fit " +
                     std::string(names.heads) + " " + std::to_string(shape.heads) + ": omit " +
                     std::string(names.kv_heads) + ", because gpt2 has no grouped-query attention.");
  }
}

}  // namespace aliquot
