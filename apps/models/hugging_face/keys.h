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

/// A model type of transformers.
struct ConfigFamily {
  std::string_view model_type;
  ModelFamily family;
  ShapeNames names;                // keys of the shape's fields
  std::string_view architectures;  // accepted classes, separated by spaces
  std::span<const ConfigKey> keys;
};

std::span<const ConfigFamily> config_families();

/// Returns null if the key is unknown for this model type.
const ConfigKey* find_config_key(const ConfigFamily& family, std::string_view name);

}  // namespace aliquot
