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
  /// Where the directory was removed or replaced meanwhile: makes it again and claims what lies there now, as the constructor.
  void renew();
  DirectoryClaim(const DirectoryClaim&) = delete;
  DirectoryClaim& operator=(const DirectoryClaim&) = delete;

 private:
  void claim();
  bool holds_current_directory() const;

  std::filesystem::path directory_;
  int descriptor_ = -1;
};

}  // namespace aliquot
