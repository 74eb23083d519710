#pragma once
// The directory of one save. It is written under a temporary name and then renamed atomically.

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/system/file.h"

namespace aliquot {

/// Rank 0 calls prepare(), publish() and abandon(); every rank calls open(). All functions except abandon() throw
/// FaultError.
class CheckpointCommit {
 public:
  CheckpointCommit(FileSystem& file_system, std::filesystem::path directory, int64_t step, const std::string& attempt);

  /// Creates the directories and the file, and reserves disk space for the file.
  void prepare(int64_t file_bytes);
  /// Opens state.h5, so that this rank can write its pages. `direct` requests direct I/O.
  File open(bool direct) const;
  /// Writes the manifest, makes everything durable, and renames the directory to its final name. If it fails, the
  /// checkpoints in the directory are unchanged. Returns a warning if the user must remove a leftover directory by
  /// hand, and otherwise an empty string.
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
