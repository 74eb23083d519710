// Finds and reads config.json.
#include "apps/data/whole_file.h"
#include "apps/models/hugging_face/config.h"

namespace aliquot {

std::optional<std::filesystem::path> find_config_near(const std::filesystem::path& weights) {
  std::error_code error;
  const auto config = (std::filesystem::is_directory(weights, error) ? weights : weights.parent_path()) / kConfigFile;
  // A dangling symbolic link counts as present, so that reading it reports an error.
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(config, error));
  return is_there ? std::optional(config) : std::nullopt;
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  return parse_model_config(read_whole_file(path, 16), path.string());
}

}  // namespace aliquot
