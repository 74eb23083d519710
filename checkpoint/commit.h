#pragma once
// The directory of one save. It is written under a temporary name and then renamed atomically.

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/system/file.h"

namespace aliquot {

/// Rank 0 calls prepare(), publish() and abandon(); every rank calls open(). All but abandon() throw FaultError.
class CheckpointCommit {
 public:
  CheckpointCommit(FileSystem& file_system, std::filesystem::path directory, int64_t step, const std::string& attempt);

  /// Creates the directories and the file, and reserves disk space for the file.
  void prepare(int64_t file_bytes);
  /// Opens state.h5, for this rank to write its pages. `direct` requests direct I/O.
  File open(bool direct) const;
  /// Writes the manifest, makes everything durable, and renames the directory to its final name. On failure the
  /// checkpoints in the directory are as before. Returns a warning about a leftover to remove by hand, or an empty
  /// string.
  std::string publish(const std::string& manifest);
  /// Removes the temporary directory if possible.
  void abandon() noexcept;

 private:
  std::string make_visible(const Directory& parent) const;

  FileSystem& file_system_;
  std::filesystem::path directory_;
  std::string final_name_, attempt_name_, backup_name_;
};

}  // namespace aliquot
