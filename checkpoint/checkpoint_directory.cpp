#include "checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "kernels/system/checkpoint_error.h"
#include "kernels/system/file.h"

namespace aliquot {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 8;

std::optional<Directory> open_if_exists(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::nullopt;
  return Directory::open(FileSystem::system(), path);
}

std::string sweep_leftover(const Directory& directory, const std::string& name) {
  const std::string full = (directory.path() / name).string();
  const std::string original = name.substr(std::string_view(kBackupPrefix).size());
  if (name.starts_with(kBackupPrefix) && checkpoint_step(original) && !directory.exists(original)) {
    directory.rename(name, original);
    directory.sync();
    return fmt::format("restored {}: a run was killed while it replaced this checkpoint",
                       (directory.path() / original).string());
  }
  if (directory.remove(name)) return fmt::format("removed {}: a killed run left it behind", full);
  return fmt::format("could not remove {}, which a killed run left behind: remove it by hand", full);
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:0{}}", kStepPrefix, step, kStepDigits); }

std::optional<int64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with(kStepPrefix) || name.size() < kStepPrefix.size() + kStepDigits) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  // Reject other spellings of the step: a sign or superfluous zeros.
  if (error != std::errc() || stop != end || step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<FoundCheckpoint> found;
  const auto opened = open_if_exists(directory);
  if (!opened) return found;
  for (const std::string& name : opened->names()) {
    const auto step = checkpoint_step(name);
    if (step && opened->is_directory(name)) found.push_back({*step, directory / name});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

bool is_gone(const std::filesystem::path& checkpoint) {
  std::error_code error;
  return std::filesystem::symlink_status(checkpoint, error).type() == std::filesystem::file_type::not_found;
}

NewestValidResult find_newest_valid(const std::filesystem::path& directory) {
  NewestValidResult result;
  auto candidates = list_checkpoints(directory);
  for (; !candidates.empty(); candidates.pop_back()) {
    try {
      verify_checkpoint(candidates.back().path);
      result.found = candidates.back();
      break;
    } catch (const CheckpointError& error) {
      result.refused.emplace_back(error.what());
    }
  }
  return result;
}

std::vector<std::string> remove_checkpoints(const std::filesystem::path& directory,
                                            const std::vector<FoundCheckpoint>& which, FileSystem* file_system) {
  std::vector<std::string> failures;
  if (which.empty()) return failures;
  for (const FoundCheckpoint& old : which) {
    const std::string name = old.path.filename(), aside = std::string(kAttemptPrefix) + "pruned-" + name;
    bool renamed = false;
    try {
      const auto opened = Directory::open(file_system != nullptr ? *file_system : FileSystem::system(), directory);
      if (!opened.remove(aside)) throw FaultError(fmt::format("cannot remove {}", (directory / aside).string()));
      opened.rename(name, aside);
      renamed = true;
      // Without this sync, a power loss could restore the old name of a directory that has already lost files.
      opened.sync();
      // cppcheck-suppress identicalConditionAfterEarlyExit ; after the rename, `aside` is another directory
      if (!opened.remove(aside)) throw FaultError(fmt::format("cannot remove {}", (directory / aside).string()));
    } catch (const FaultError& error) {
      if (!renamed && is_gone(old.path)) continue;  // another process removed it
      failures.push_back(fmt::format("could not remove the old checkpoint {}: {}", old.path.string(), error.what()));
    }
  }
  return failures;
}

std::vector<std::string> prune_checkpoints(const std::filesystem::path& directory, int keep_count,
                                           std::optional<int64_t> always_keep, FileSystem* file_system) {
  auto candidates = list_checkpoints(directory);
  int remaining = keep_count;
  const auto is_kept = [&](const FoundCheckpoint& each) { return each.step == always_keep; };
  if (std::any_of(candidates.begin(), candidates.end(), is_kept)) --remaining;
  std::erase_if(candidates, is_kept);
  candidates.resize(candidates.size() - std::min(candidates.size(), static_cast<size_t>(std::max(remaining, 0))));
  return remove_checkpoints(directory, candidates, file_system);
}

PruneReport prune_verified(const std::filesystem::path& directory, int64_t keep_count) {
  PruneReport report;
  auto candidates = list_checkpoints(directory);
  for (int64_t good = 0; good < keep_count && !candidates.empty(); candidates.pop_back()) {
    try {
      verify_checkpoint(candidates.back().path);
      ++good;
    } catch (const CheckpointError& error) {
      if (!is_gone(candidates.back().path)) report.bad.emplace_back(error.what());
    }
  }
  report.failures = remove_checkpoints(directory, candidates);
  std::erase_if(candidates, [](const FoundCheckpoint& each) { return std::filesystem::exists(each.path); });
  report.removed = std::move(candidates);
  return report;
}

std::vector<std::string> sweep_leftovers(const std::filesystem::path& directory) {
  std::vector<std::string> messages;
  const auto opened = open_if_exists(directory);
  if (!opened) return messages;
  for (const std::string& name : opened->names()) {
    const bool is_old_checkpoint = name.starts_with(kBackupPrefix) && opened->is_directory(name);
    if (name.starts_with(kAttemptPrefix) || is_old_checkpoint) messages.push_back(sweep_leftover(*opened, name));
  }
  return messages;
}

}  // namespace aliquot
