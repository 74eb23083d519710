#pragma once
// The shapes of the models that aliquot brings along.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace aliquot {

enum class ModelFamily : uint8_t { kGpt2, kLlama };

/// A transformer's extents, as the manual's table names them.
struct ModelShape {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t hidden = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  int64_t rotary_factor = 1;  // llama: slow angles are this much slower, as those published for long contexts have it
  bool tied = true;           // the head is the table of tokens

  int64_t head_width() const { return width / heads; }
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

struct ModelPreset {
  std::string_view name;
  ModelShape shape;
};

/// The manual's table.
std::span<const ModelPreset> model_presets();
/// Null if there is none of that name.
const ModelPreset* find_model_preset(std::string_view name);

/// Throws UsageError, naming the flag to change, when extents do not fit together (heads that do not divide the width,
/// ...).
void check(const ModelShape& shape);

}  // namespace aliquot
