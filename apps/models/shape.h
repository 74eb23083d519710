#pragma once
// The shapes of the reference models.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/models/lora.h"

namespace aliquot {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };
/// Returns "none", "linear", "dynamic", "yarn" or "llama3".
std::string_view name(RopeScaling scaling);

/// Rotary position embedding. rotary_angles.h defines the frequencies of each scaling. A scaling uses `factor` and:
/// - kDynamic: the context and the sequence length;
/// - kYarn: original_context and the fields after it;
/// - kLlama3: low_freq_factor, high_freq_factor and original_context.
/// Fields that the scaling does not use must keep their defaults.
struct Rope {
  double theta = 500000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_context = 8192;
  double beta_fast = 32, beta_slow = 1;  // rotations in the original context at the ends of yarn's ramp
  double attention_factor = 1;           // multiplies cosines and sines
  bool truncate = true;                  // rounds the ends of yarn's ramp to whole pairs of elements

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
  // Variations of llama, which the other model types of its family have.
  int64_t own_head_width = 0;  // elements of an attention head; 0: width / heads
  bool qkv_bias = false;       // biases of the projections to queries, keys and values
  bool output_bias = false;    // bias of the projection after attention
  bool qk_norm = false;        // an RMS norm of each head of queries and keys, before the rotation
  /// Sliding window of attention: a query attends to its own position and the `window` - 1 positions before it. 0: to
  /// all positions before it.
  int64_t window = 0;
  std::vector<bool> window_layers = {};  // the layers that use `window`; empty: all
  Lora lora = {};

  int64_t head_width() const { return own_head_width != 0 ? own_head_width : width / heads; }
  void set_head_width(int64_t elements) { own_head_width = elements * heads == width ? 0 : elements; }
  /// The elements of all heads of queries, and of all heads of keys, of one token.
  int64_t query_width() const { return heads * head_width(); }
  int64_t key_width() const { return kv_heads * head_width(); }
  /// Sequences may be longer than the context only with dynamic RoPE scaling, which defines their angles.
  bool accepts_sequence(int64_t length) const { return length <= context || rope.scaling == RopeScaling::kDynamic; }
  /// The window of a layer, or 0.
  int64_t window_of(int64_t layer) const {
    return window_layers.empty() || window_layers[static_cast<size_t>(layer)] ? window : 0;
  }
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
  std::string_view head_width = "head_dim", window = "sliding_window", window_layers = "layer_types";
};
inline constexpr ShapeNames kShapeFlags{"--layers",  "--width", "--heads",      "--kv-heads", "--hidden",
                                        "--context", "--vocab", "norm_epsilon", "rope_theta"};

/// Returns the hyperparameters that the shapes of the tensors do not determine, for example "4 heads, norm epsilon
/// 1e-05, RoPE theta 10000".
std::string numbers_text(const ModelShape& shape);

/// The model type of transformers that computes this shape: "gpt2", "llama", "mistral", "qwen2" or "qwen3".
std::string_view model_type(const ModelShape& shape);

/// Throws UsageError, naming the field, if a number is out of range or if fields do not fit together. For example,
/// heads must divide the width. Also throws if no model type of transformers combines the variations of the shape.
void check(const ModelShape& shape, const ShapeNames& names = kShapeFlags);

}  // namespace aliquot
