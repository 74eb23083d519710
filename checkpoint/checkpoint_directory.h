#pragma once
// Management of the checkpoints in a directory: listing, removal, and cleanup after a killed save.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace aliquot {

class FileSystem;

struct FoundCheckpoint {
  int64_t step = 0;
  std::filesystem::path path;
};

/// Returns the step that a directory name such as "step-00000100" encodes, or nothing for any other name. The inverse
/// of checkpoint_name().
std::optional<int64_t> checkpoint_step(const std::string& name);

/// Returns all checkpoints of the directory, recognized by name and sorted by step. Does not verify them. Returns
/// an empty list if the directory does not exist.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& directory);

struct NewestValidResult {
  std::optional<FoundCheckpoint> found;
  /// One message for each checkpoint that is newer than `found` and cannot be used. If `found` is empty, one message
  /// for each checkpoint of the directory.
  std::vector<std::string> refused;
};

/// Finds the newest checkpoint whose every byte passes verification. Not collective: ranks call load_newest() instead.
NewestValidResult find_newest_valid(const std::filesystem::path& directory);

/// Whether the directory of a checkpoint no longer exists, for example because another process pruned it.
bool is_gone(const std::filesystem::path& checkpoint);

/// Removes checkpoints of the directory. Renames each one first, so that no partly removed checkpoint is visible.
/// Returns one message for each checkpoint that could not be removed. A null `file_system` means FileSystem::system().
std::vector<std::string> remove_checkpoints(const std::filesystem::path& directory,
                                            const std::vector<FoundCheckpoint>& which,
                                            FileSystem* file_system = nullptr);

/// Removes all but `keep_count` checkpoints. Keeps the checkpoint of step `always_keep`, if it exists, and the newest
/// of the others. Does not verify checkpoints, because save() calls this function directly after it has written one.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& directory, int keep_count,
                                           std::optional<int64_t> always_keep = std::nullopt,
                                           FileSystem* file_system = nullptr);

struct PruneReport {
  std::vector<FoundCheckpoint> removed;
  /// One message for each checkpoint that failed verification. Such checkpoints are not removed. Verification starts
  /// with the newest checkpoint and stops when `keep_count` valid ones are found.
  std::vector<std::string> bad;
  std::vector<std::string> failures;  // one message for each checkpoint that could not be removed
};

/// Removes all checkpoints older than the newest `keep_count` valid ones. Bad checkpoints are not counted, so nothing
/// is removed while fewer than `keep_count` are valid. `keep_count` is 1 or more.
PruneReport prune_verified(const std::filesystem::path& directory, int64_t keep_count);

/// Removes the temporary files and directories of killed runs, including partly written flight records. Restores a
/// checkpoint whose replacement was interrupted. No rank may save into the directory during the call. Returns one
/// message for each action and each failure.
std::vector<std::string> sweep_leftovers(const std::filesystem::path& directory);

/// Name prefixes of uncommitted saves and of checkpoints that are being replaced.
inline constexpr const char* kAttemptPrefix = ".tmp-";
inline constexpr const char* kBackupPrefix = ".old-";

}  // namespace aliquot
