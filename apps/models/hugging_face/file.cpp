// Finds and reads config.json.
#include "kernels/system/file.h"

#include <fmt/format.h>
#include <span>

#include "apps/models/hugging_face/config.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kConfigBytesLimit = int64_t{16} << 20;

}  // namespace

std::optional<std::filesystem::path> find_config_near(const std::filesystem::path& weights) {
  std::error_code error;
  const auto config = (std::filesystem::is_directory(weights, error) ? weights : weights.parent_path()) / kConfigFile;
  // A dangling symbolic link counts as present, so that reading it reports an error.
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(config, error));
  return is_there ? std::optional(config) : std::nullopt;
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::string text;
  try {
    const auto real = std::filesystem::canonical(path);
    const File file =
        Directory::open(FileSystem::system(), real.parent_path()).open_for_reading(real.filename().string());
    if (!file.is_regular()) throw UsageError(where + ": it is not a regular file.");
    if (file.size_bytes() > kConfigBytesLimit) throw UsageError(where + ": it is larger than 16 MiB.");
    text.resize(static_cast<size_t>(file.size_bytes()));
    file.read(std::as_writable_bytes(std::span(text)), 0);
  } catch (const FaultError& error) {
    throw UsageError(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw UsageError(fmt::format("{}: {}.", where, error.code().message()));
  }
  return parse_model_config(text, where);
}

}  // namespace aliquot
