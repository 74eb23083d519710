#include "checkpoint/commit.h"

#include <fmt/format.h>
#include <span>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file/manifest.h"
#include "checkpoint/save.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

/// Creates a directory and its missing parents, and makes each durable.
void make_directories(FileSystem& file_system, const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_directory(path, error)) return;
  const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (path.filename().empty()) return make_directories(file_system, parent);  // the path ends with a slash
  make_directories(file_system, parent);
  const Directory above = Directory::open(file_system, parent);
  try {
    above.make_directory(path.filename());
  } catch (const FaultError& failure) {
    throw FaultError(fmt::format("{}: save checkpoints to a directory that this process can create", failure.what()));
  }
  above.sync();
}

}  // namespace

CheckpointCommit::CheckpointCommit(FileSystem& file_system, std::filesystem::path directory, int64_t step,
                                   const std::string& attempt)
    : file_system_(file_system),
      directory_(std::move(directory)),
      final_name_(checkpoint_name(step)),
      attempt_name_(fmt::format("{}{:08}-{}", kAttemptPrefix, step, attempt)),
      backup_name_(kBackupPrefix + final_name_) {}

void CheckpointCommit::prepare(int64_t file_bytes) {
  make_directories(file_system_, directory_);
  const Directory parent = Directory::open(file_system_, directory_);
  const int64_t free_bytes = parent.free_bytes();
  if (free_bytes < file_bytes) {
    throw FaultError(
        fmt::format("a checkpoint needs {} in {}, but only {} are free: free disk space, keep fewer checkpoints, or "
                    "save to another file system",
                    format_bytes(file_bytes), directory_.string(), format_bytes(free_bytes)));
  }
  parent.make_directory(attempt_name_);
  File file = parent.open_directory(attempt_name_).create(kStateFile);
  if (!file.allocate(file_bytes)) file.resize(file_bytes);
  file.close();
}

File CheckpointCommit::open(bool direct) const {
  return Directory::open(file_system_, directory_).open_directory(attempt_name_).open_for_writing(kStateFile, direct);
}

std::string CheckpointCommit::publish(const std::string& manifest) {
  Directory parent = Directory::open(file_system_, directory_);
  {
    Directory attempt = parent.open_directory(attempt_name_);
    File file = attempt.create(kManifestFile);
    file.write(std::as_bytes(std::span(manifest)), 0);
    file.sync();
    file.close();
    attempt.sync();
  }
  return make_visible(parent);
}

std::string CheckpointCommit::make_visible(const Directory& parent) const {
  const bool replaces = parent.exists(final_name_);
  if (replaces) {
    parent.exchange(attempt_name_, final_name_, backup_name_);
  } else {
    parent.rename(attempt_name_, final_name_);
  }
  try {
    parent.sync();
  } catch (const FaultError&) {
    // The directory was not synced, so a power failure could still undo the rename. The save must therefore fail, and
    // the old checkpoint must get its name back.
    if (!replaces) {
      parent.rename(final_name_, attempt_name_);
    } else if (parent.exists(backup_name_)) {
      parent.rename(final_name_, attempt_name_);
      parent.rename(backup_name_, final_name_);
    } else {
      parent.exchange(attempt_name_, final_name_, backup_name_);
    }
    throw;
  }
  if (!replaces || (parent.remove(attempt_name_) && parent.remove(backup_name_))) return {};
  return fmt::format("could not remove the previous version of {} in {}: remove {} and {} by hand", final_name_,
                     directory_.string(), attempt_name_, backup_name_);
}

void CheckpointCommit::abandon() noexcept {
  try {
    Directory::open(file_system_, directory_).remove(attempt_name_);
  } catch (...) {  // the directory stays; nothing treats its name as a checkpoint
  }
}

}  // namespace aliquot
