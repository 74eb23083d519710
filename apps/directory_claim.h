#pragma once
// One run at a time in a checkpoint directory.

#include <filesystem>

namespace aliquot {

/// Held by one process of a run: while it is, no other run sweeps, saves or prunes there. It leaves nothing in the directory, and
/// goes with its process, however that ends. Where the file system has no locks it keeps nobody out.
class DirectoryClaim {
 public:
  /// Waits a few seconds for a run that is just ending; then throws UnavailableError.
  explicit DirectoryClaim(const std::filesystem::path& directory);
  ~DirectoryClaim();
  DirectoryClaim(const DirectoryClaim&) = delete;
  DirectoryClaim& operator=(const DirectoryClaim&) = delete;

 private:
  int descriptor_;
};

}  // namespace aliquot
