#pragma once
// Checkpoints in a directory: which there are, which to drop, and what a killed save left behind.

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

/// The step of a directory called that; nothing for any other name. The inverse of checkpoint_name().
std::optional<int64_t> checkpoint_step(const std::string& name);

/// Every checkpoint of the directory by its name, oldest first, none verified. Empty when there is no such directory.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& directory);

struct NewestValidResult {
  std::optional<FoundCheckpoint> found;
  std::vector<std::string> refused;  // newer ones that are bad, a sentence each
};

/// The newest checkpoint of which every byte verifies. One process; load_newest() is for ranks.
NewestValidResult find_newest_valid(const std::filesystem::path& directory);

/// Removes checkpoints of the directory: renames first, so that none is ever seen in part. Returns a sentence for each
/// that could not be removed. `file_system` is the system's own when null.
std::vector<std::string> remove_checkpoints(const std::filesystem::path& directory,
                                            const std::vector<FoundCheckpoint>& which,
                                            FileSystem* file_system = nullptr);

/// Removes all but the newest `keep_count` checkpoints, and never that of step `always_keep`. None is verified: for a
/// save, which has just written the newest.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& directory, int keep_count,
                                           std::optional<int64_t> always_keep = std::nullopt,
                                           FileSystem* file_system = nullptr);

struct PruneReport {
  std::vector<FoundCheckpoint> removed;
  std::vector<std::string> bad;       // newer than what was removed, left alone: a sentence each
  std::vector<std::string> failures;  // what could not be removed: a sentence each
};

/// Removes what is older than the newest `keep_count` checkpoints that verify; bad ones are not counted, so nothing is
/// removed while fewer are good. `keep_count` is 1 or more.
PruneReport prune_verified(const std::filesystem::path& directory, int64_t keep_count);

/// Removes what killed runs left half written, records of their ranks too, and puts back a checkpoint that was caught in
/// mid-replacement. Only while nobody saves into the directory. Returns a sentence for each thing done or left undone.
std::vector<std::string> sweep_leftovers(const std::filesystem::path& directory);

/// How a save's names begin before the commit, and how a checkpoint's that is being replaced does.
inline constexpr const char* kAttemptPrefix = ".tmp-";
inline constexpr const char* kBackupPrefix = ".old-";

}  // namespace aliquot
