#pragma once
// Hugging Face's config.json as the definition of a model.

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
  ShapeNames names;                  // the keys of the shape
  std::vector<std::string> remarks;  // warnings, a sentence each: dropout, which is not supported, and unknown keys
};

/// Parses the text of config.json. A missing key has the default of transformers' configuration class, except that extents
/// are required. Keys that transformers does not define for the model type are ignored and reported in `remarks`. Throws
/// UsageError, one sentence that begins with `where`, if the text is not a JSON object, a value has the wrong type or is out
/// of range, the model type is not supported, or a key has a value that changes the computation and is not supported.
ModelConfig parse_model_config(std::string_view text, const std::string& where);

/// Reads and parses a file. Throws UsageError if it is not a regular file of at most 16 MiB. Follows links.
ModelConfig read_model_config(const std::filesystem::path& file);

/// The path of the config.json beside `weights`, which is a folder or a file in it; nothing if it does not exist.
std::optional<std::filesystem::path> find_config_near(const std::filesystem::path& weights);

}  // namespace aliquot
