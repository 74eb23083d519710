#include "apps/data/whole_file.h"

#include <fmt/format.h>
#include <span>

#include "kernels/system/error.h"
#include "kernels/system/file.h"

namespace aliquot {

std::string read_whole_file(const std::filesystem::path& path, int64_t most_mib) {
  const std::string where = path.string();
  std::string text;
  try {
    const auto real = std::filesystem::canonical(path);
    const File file =
        Directory::open(FileSystem::system(), real.parent_path()).open_for_reading(real.filename().string());
    if (!file.is_regular()) throw UsageError(where + ": it is not a regular file.");
    if (file.size_bytes() > most_mib << 20)
      throw UsageError(fmt::format("{}: it is larger than {} MiB.", where, most_mib));
    text.resize(static_cast<std::size_t>(file.size_bytes()));
    file.read(std::as_writable_bytes(std::span(text)), 0);
  } catch (const FaultError& error) {
    throw UsageError(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    throw UsageError(fmt::format("{}: {}.", where, error.code().message()));
  }
  return text;
}

}  // namespace aliquot
