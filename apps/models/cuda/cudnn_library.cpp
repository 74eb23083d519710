#include "apps/models/cuda/cudnn_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::string version_text(std::size_t version) {
  // Versions before 9 have one digit for the minor number.
  const std::size_t minors = version < 10000 ? 10 : 100;
  return fmt::format("cuDNN {}.{}.{}", version / (100 * minors), version / 100 % minors, version % 100);
}

}  // namespace

std::string CudnnLibrary::describe() const { return version_text(version); }

CudnnLibrary load_cudnn(std::span<const std::string> files) {
  CudnnLibrary library;
  std::string loaded;
  for (const std::string& file : files) {
    library.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle == nullptr) continue;
    loaded = file;
    break;
  }
  if (library.handle == nullptr) {
    throw UnavailableError(fmt::format(
        "--attention cudnn needs {}, which was not found: install cuDNN, add its folder to LD_LIBRARY_PATH, or use "
        "--attention own.",
        fmt::join(files, " or ")));
  }
  const auto get_version = reinterpret_cast<std::size_t (*)()>(dlsym(library.handle, "cudnnGetVersion"));
  if (get_version == nullptr) {
    throw UnavailableError(
        fmt::format("{} has no function cudnnGetVersion: install cuDNN, or use --attention own.", loaded));
  }
  library.version = get_version();
  if (library.version < kOldestCudnn) {
    throw UnavailableError(fmt::format("--attention cudnn needs {} or newer, and {} is {}: use --attention own.",
                                       version_text(kOldestCudnn), loaded, library.describe()));
  }
  return library;
}

}  // namespace aliquot
