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

void check_rope(const Rope& rope, const ShapeNames& names) {
  check_range(names.rope_theta, rope.theta, 1, 1e30);
  if (rope.scaling == RopeScaling::kNone) return;
  const auto part = [](std::string_view name) { return fmt::format("the RoPE scaling's {}", name); };
  check_range(part("factor"), rope.factor, 1, 1e6);
  check_range(part("low_freq_factor"), rope.low_freq_factor, 1e-6, 1e6);
  check_range(part("high_freq_factor"), rope.high_freq_factor, 1e-6, 1e6);
  check_positive(part("original_max_position_embeddings"), rope.original_context);
  if (rope.high_freq_factor > rope.low_freq_factor) return;
  throw UsageError(fmt::format("{} {} is not above {} {}: change one of them.", part("high_freq_factor"),
                               rope.high_freq_factor, part("low_freq_factor"), rope.low_freq_factor));
}

}  // namespace

std::string_view name(RopeScaling scaling) { return scaling == RopeScaling::kLlama3 ? "llama3" : "none"; }

std::span<const ModelPreset> model_presets() { return kPresets; }

const ModelPreset* find_model_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &ModelPreset::name);
  return found == kPresets.end() ? nullptr : &*found;
}

std::string numbers_text(const ModelShape& shape) {
  std::string text = fmt::format("{} heads, norm epsilon {}", shape.heads, shape.norm_epsilon);
  if (shape.family != ModelFamily::kLlama) return text;
  text += fmt::format(", RoPE theta {}", shape.rope.theta);
  if (shape.rope.scaling == RopeScaling::kNone) return text;
  return text + fmt::format(" with {} scaling by {}", name(shape.rope.scaling), shape.rope.factor);
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
  check_rope(shape.rope, names);
  check_multiple(names.width, shape.width, names.heads, shape.heads);
  check_multiple(names.heads, shape.heads, names.kv_heads, shape.kv_heads);
  if (shape.family == ModelFamily::kLlama && shape.head_width() % 2 != 0) {
    throw UsageError(std::string(names.width) + " " + std::to_string(shape.width) + " and " + std::string(names.heads) +
                     " " + std::to_string(shape.heads) + " give a head width of " + std::to_string(shape.head_width()) +
                     ", but rotary position embedding needs an even one: change one of them.");
  }
  if (shape.family == ModelFamily::kGpt2 && shape.kv_heads != shape.heads) {
    throw UsageError(std::string(names.kv_heads) + " " + std::to_string(shape.kv_heads) + " does not fit " +
                     std::string(names.heads) + " " + std::to_string(shape.heads) + ": omit " +
                     std::string(names.kv_heads) + ", because gpt2 has no grouped-query attention.");
  }
}

}  // namespace aliquot
