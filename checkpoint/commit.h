#pragma once
// The directory of one save: made aside, filled, and then visible in one step, or never.

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/system/file.h"

namespace aliquot {

/// Rank 0 prepares, publishes and abandons; every rank opens. Throws FaultError.
class CheckpointCommit {
 public:
  CheckpointCommit(FileSystem& file_system, std::filesystem::path directory, int64_t step, const std::string& attempt);

  /// Makes the directories and the file, and reserves its space.
  void prepare(int64_t file_bytes);
  /// The file, for this rank to write its pages.
  File open(bool direct) const;
  /// Writes the manifest last, and makes everything durable and visible under its final name. When that fails the
  /// directory is as it was before. Returns what is left to remove by hand: nothing, or a sentence.
  std::string publish(const std::string& manifest);
  /// Removes the attempt, as far as that can be done.
  void abandon() noexcept;

 private:
  std::string make_visible(const Directory& parent) const;

  FileSystem& file_system_;
  std::filesystem::path directory_;
  std::string final_name_, attempt_name_, backup_name_;
};

}  // namespace aliquot
