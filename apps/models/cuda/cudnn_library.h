#pragma once
// Loads cuDNN when --attention cudnn needs it.

#include <cstddef>
#include <span>
#include <string>

namespace aliquot {

/// The oldest version of cuDNN that attention supports, as cudnnGetVersion() returns versions. In older versions, the
/// frontend clears memory with functions of libcudart, which a program need not have.
inline constexpr std::size_t kOldestCudnn = 90600;

/// A library that dlopen() has loaded. It is never unloaded.
struct CudnnLibrary {
  void* handle = nullptr;
  std::size_t version = 0;

  /// For example "cuDNN 9.28.1".
  std::string describe() const;
};

/// Loads the first of the files that exists. Throws UnavailableError, naming --attention own, if none can be loaded, if
/// it is not cuDNN, or if its version is older than kOldestCudnn.
CudnnLibrary load_cudnn(std::span<const std::string> files);

}  // namespace aliquot
