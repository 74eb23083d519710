#pragma once
// The keys of Hugging Face's config.json for each model type, and their treatment.

#include <span>
#include <string_view>

#include "apps/models/shape.h"

namespace aliquot {

enum class ConfigKeyUse : uint8_t {
  kRead,     // determines a field of the model's shape
  kFixed,    // changes the computation: only the values in `supported` are accepted
  kDropout,  // changes training only: values other than 0 are reported as unsupported
  kPadding,  // the padding token, which transformers does not train as an input: reported if the key is set
  kAlias,    // another name of the key in `supported`: rejected if the values differ
  kIgnored,  // does not change the result
};

struct ConfigKey {
  std::string_view name;
  ConfigKeyUse use;
  std::string_view supported = {};  // kFixed: JSON values, separated by spaces; kAlias: a key
};

/// The layers of a model type that can have a sliding window.
enum class ConfigWindows : uint8_t { kNone, kAllLayers, kSomeLayers };

/// A model type of transformers.
struct ConfigFamily {
  std::string_view model_type;
  ModelFamily family;
  ShapeNames names;                        // keys of the shape's fields
  std::string_view architectures;          // accepted classes, separated by spaces; first the language model
  std::span<const ConfigKey> keys;         // keys of this type
  std::span<const ConfigKey> shared = {};  // keys of this type and others
  int64_t kv_heads = 0;                    // used if the key is missing; 0: the number of heads
  int64_t head_width = 0;                  // used if head_dim is missing; 0: width / heads
  ConfigWindows windows = ConfigWindows::kNone;
  bool heads_divide_width = false;    // required even if head_dim is set
  bool reads_attention_bias = false;  // the key attention_bias sets the biases of all four projections
  bool qkv_bias = false, qk_norm = false;
};

std::span<const ConfigFamily> config_families();

/// Returns null if the key is unknown for this model type.
const ConfigKey* find_config_key(const ConfigFamily& family, std::string_view name);

}  // namespace aliquot
