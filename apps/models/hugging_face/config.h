#pragma once
// Reads the definition of a model from a Hugging Face config.json.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/models/shape.h"

namespace aliquot {

inline constexpr const char* kConfigFile = "config.json";

struct ModelConfig {
  ModelShape shape;
  int64_t head_width = 0;            // head_dim of the file or of its model type; 0: width / heads
  ShapeNames names;                  // the keys of config.json for the fields of the shape
  std::vector<std::string> remarks;  // warnings, one sentence each, for example about unknown keys
};

/// Returns the kind of model that `name` (a model_type, or the name of a model) belongs to, if models of this kind are
/// not supported: for example "mixture-of-experts" for "mixtral-8x7b". Returns "" for other names.
std::string_view unsupported_kind(std::string_view name);

/// Parses the text of config.json. Missing keys have the defaults of transformers' configuration class, but sizes are
/// required. Keys that transformers does not define for the model type are ignored and reported in `remarks`.
///
/// Throws UsageError if the text is not a JSON object, a value has the wrong type or is out of range, the model type is
/// not supported, or a value changes the computation in an unsupported way. The message begins with `where`.
ModelConfig parse_model_config(std::string_view text, const std::string& where);

/// Reads a file and parses it with parse_model_config(). Follows symbolic links. Also throws UsageError if the path is
/// not a regular file, or if the file is larger than 16 MiB.
ModelConfig read_model_config(const std::filesystem::path& file);

/// Returns the path of the config.json in the directory `weights`, or next to the file `weights`. Returns nullopt if
/// there is no such file.
std::optional<std::filesystem::path> find_config_near(const std::filesystem::path& weights);

}  // namespace aliquot
