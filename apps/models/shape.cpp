#include "apps/models/shape.h"

#include <algorithm>
#include <array>

#include "kernels/error.h"

namespace aliquot {
namespace {

constexpr ModelShape gpt2(int64_t layers, int64_t width, int64_t heads) {
  return {ModelFamily::kGpt2, layers, width, heads, heads, 4 * width, 1024, 50257};
}

constexpr std::array kPresets = {
    ModelPreset{"gpt2-nano", {ModelFamily::kGpt2, 4, 128, 4, 4, 512, 128, 256}},
    ModelPreset{"gpt2-124m", gpt2(12, 768, 12)},
    ModelPreset{"gpt2-355m", gpt2(24, 1024, 16)},
    ModelPreset{"gpt2-774m", gpt2(36, 1280, 20)},
    ModelPreset{"gpt2-1.5b", gpt2(48, 1600, 25)},
    ModelPreset{"llama-nano", {ModelFamily::kLlama, 4, 128, 4, 2, 384, 128, 256}},
    ModelPreset{"llama-1b", {ModelFamily::kLlama, 16, 2048, 32, 8, 8192, 8192, 128256, 32}},
    ModelPreset{"llama-8b", {ModelFamily::kLlama, 32, 4096, 32, 8, 14336, 8192, 128256, 8, false}},
};

void check_positive(std::string_view flag, int64_t value) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (value >= 1 && value <= kLargest) return;
  throw UsageError("--" + std::string(flag) + " is " + std::to_string(value) + ": give a number from 1 to 2147483648.");
}

void check_multiple(std::string_view flag, int64_t value, std::string_view of_flag, int64_t of) {
  if (value % of == 0) return;
  throw UsageError("--" + std::string(flag) + " " + std::to_string(value) + " is not a multiple of --" +
                   std::string(of_flag) + " " + std::to_string(of) + ": change one of them.");
}

}  // namespace

std::span<const ModelPreset> model_presets() { return kPresets; }

const ModelPreset* find_model_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &ModelPreset::name);
  return found == kPresets.end() ? nullptr : &*found;
}

void check(const ModelShape& shape) {
  check_positive("layers", shape.layers);
  check_positive("width", shape.width);
  check_positive("heads", shape.heads);
  check_positive("kv-heads", shape.kv_heads);
  check_positive("hidden", shape.hidden);
  check_positive("context", shape.context);
  check_positive("vocab", shape.vocabulary);
  check_multiple("width", shape.width, "heads", shape.heads);
  check_multiple("heads", shape.heads, "kv-heads", shape.kv_heads);
  if (shape.family == ModelFamily::kLlama && shape.head_width() % 2 != 0) {
    throw UsageError("--width " + std::to_string(shape.width) + " and --heads " + std::to_string(shape.heads) +
                     " make heads of " + std::to_string(shape.head_width()) +
                     " elements, and rotary positions turn pairs: change one of them.");
  }
  if (shape.family == ModelFamily::kGpt2 && shape.kv_heads != shape.heads) {
    throw UsageError("--kv-heads " + std::to_string(shape.kv_heads) +
                     " with a gpt2 model: its heads all have keys of their own; leave the flag out.");
  }
}

}  // namespace aliquot
