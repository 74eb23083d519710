#pragma once
// The shapes of the reference models.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace aliquot {

enum class ModelFamily : uint8_t { kGpt2, kLlama };

enum class RopeScaling : uint8_t { kNone, kLlama3 };
/// Returns "none" or "llama3".
std::string_view name(RopeScaling scaling);

/// Rotary position embedding. kLlama3 (Llama 3.1 and later) divides a frequency by `factor` if its wavelength is above
/// original_context / low_freq_factor. It keeps a frequency if the wavelength is below original_context /
/// high_freq_factor, and interpolates between the two. With kNone the fields after `scaling` are unused and must keep
/// their defaults.
struct Rope {
  double theta = 500000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;

  friend bool operator==(const Rope&, const Rope&) = default;
};

/// The properties of a transformer that determine its computation, except the weights.
struct ModelShape {
  ModelFamily family = ModelFamily::kGpt2;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t hidden = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  Rope rope = {};    // llama only
  bool tied = true;  // the head uses the token embedding
  double norm_epsilon = 1e-5;

  int64_t head_width() const { return width / heads; }
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

struct ModelPreset {
  std::string_view name;
  ModelShape shape;
};

/// The presets of --model.
std::span<const ModelPreset> model_presets();
/// Returns the preset with this name, or null if there is none.
const ModelPreset* find_model_preset(std::string_view name);

/// Names of a shape's fields in error messages: flags, or keys of config.json.
struct ShapeNames {
  std::string_view layers, width, heads, kv_heads, hidden, context, vocabulary, norm_epsilon, rope_theta;
};
inline constexpr ShapeNames kShapeFlags{"--layers",  "--width", "--heads",      "--kv-heads", "--hidden",
                                        "--context", "--vocab", "norm_epsilon", "rope_theta"};

/// Returns the hyperparameters that the shapes of the tensors do not determine, for example "4 heads, norm epsilon
/// 1e-05, RoPE theta 10000".
std::string numbers_text(const ModelShape& shape);

/// Throws UsageError, naming the field, if a number is out of range or if fields do not fit together. For example,
/// heads must divide the width.
void check(const ModelShape& shape, const ShapeNames& names = kShapeFlags);

}  // namespace aliquot
