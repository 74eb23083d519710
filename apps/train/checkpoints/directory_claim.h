#pragma once
// A lock that lets only one run at a time use a checkpoint directory.

#include <filesystem>

namespace aliquot {

/// An exclusive flock() on the directory, held by one process of a run. It leaves no file behind, and the kernel
/// releases it when the process ends. Has no effect on file systems without locks.
class DirectoryClaim {
 public:
  /// Waits up to 5 seconds for another run to end, then throws UnavailableError.
  explicit DirectoryClaim(const std::filesystem::path& directory);
  ~DirectoryClaim();
  /// If the directory has been removed or replaced, creates it if necessary and claims it again. Throws like the
  /// constructor.
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
