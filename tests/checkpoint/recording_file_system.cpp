#include "tests/checkpoint/recording_file_system.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "checkpoint/hash/sha256.h"

namespace aliquot::test {
namespace {

uint64_t real_node(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? status.st_ino : 0;
}

void restore_directory(const Disk& disk, int node, const std::filesystem::path& to) {
  const auto directory = disk.directories.find(node);
  if (directory == disk.directories.end()) return;
  for (const auto& [name, inner] : directory->second) {
    if (disk.directories.contains(inner)) {
      std::filesystem::create_directory(to / name);
      restore_directory(disk, inner, to / name);
    } else {
      std::ofstream file(to / name, std::ios::binary);
      if (const auto found = disk.files.find(inner); found != disk.files.end()) file << found->second;
    }
  }
}

}  // namespace

void Disk::apply(const DiskCall& call) {
  switch (call.kind) {
    case DiskCall::Kind::kEntries:
      for (const auto& [name, node] : call.entries) {
        if (node < 0) {
          directories[call.node].erase(name);
        } else {
          directories[call.node][name] = node;
        }
      }
      return;
    case DiskCall::Kind::kWrite: {
      std::string& file = files[call.node];
      const auto offset = static_cast<size_t>(call.offset);
      if (file.size() < offset + call.bytes.size()) file.resize(offset + call.bytes.size());
      file.replace(offset, call.bytes.size(), call.bytes);
      return;
    }
    case DiskCall::Kind::kResize: files[call.node].resize(static_cast<size_t>(call.offset)); return;
    default: return;
  }
}

void Disk::restore(const std::filesystem::path& to) const { restore_directory(*this, 0, to); }

std::string Disk::fingerprint() const {
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    hash.update(std::to_string(text.size()) + ":");
    hash.update(text);
  };
  for (const auto& [node, entries] : directories) {
    add("directory " + std::to_string(node));
    for (const auto& [name, inner] : entries) add(name + " " + std::to_string(inner));
  }
  for (const auto& [node, bytes] : files) {
    add("file " + std::to_string(node));
    add(bytes);
  }
  return hex(hash.finish());
}

DiskLog::DiskLog(const std::filesystem::path& root) {
  struct stat status {};
  ::stat(root.c_str(), &status);
  new_node(status.st_ino, true);
}

void DiskLog::acknowledge(int64_t step, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  DiskCall call;
  call.kind = DiskCall::Kind::kAcknowledge;
  call.step = step;
  call.seed = seed;
  calls_.push_back(std::move(call));
}

void DiskLog::add(DiskCall call) {
  disk_.apply(call);
  calls_.push_back(std::move(call));
}

int DiskLog::new_node(uint64_t real, bool is_directory) {
  const int node = node_count_++;
  nodes_[real] = node;
  if (is_directory) disk_.directories[node];
  return node;
}

int DiskLog::find_node(uint64_t real) const {
  const auto found = nodes_.find(real);
  return found == nodes_.end() ? -1 : found->second;
}

int RecordingFileSystem::node_of(int file) const {
  const auto found = nodes_.find(file);
  return found == nodes_.end() ? -1 : found->second;
}

DiskCall RecordingFileSystem::call(DiskCall::Kind kind, int node) const {
  DiskCall call;
  call.kind = kind;
  call.rank = rank_;
  call.node = node;
  return call;
}

int RecordingFileSystem::open_at(int directory, const char* name, int flags, mode_t mode) {
  const std::lock_guard lock(log_.mutex_);
  const int file = FileSystem::open_at(directory, name, flags, mode);
  if (file < 0) return file;
  if ((flags & O_CREAT) != 0 && node_of(directory) >= 0) {
    nodes_[file] = log_.new_node(real_node(file), false);
    DiskCall made = call(DiskCall::Kind::kEntries, node_of(directory));
    made.entries[name] = nodes_[file];
    log_.add(std::move(made));
  } else if (const int node = log_.find_node(real_node(file)); node >= 0) {
    nodes_[file] = node;
  }
  return file;
}

int RecordingFileSystem::close(int file) {
  const std::lock_guard lock(log_.mutex_);
  nodes_.erase(file);
  return FileSystem::close(file);
}

ssize_t RecordingFileSystem::pwrite(int file, const void* from, size_t count, off_t offset) {
  const std::lock_guard lock(log_.mutex_);
  const ssize_t written = FileSystem::pwrite(file, from, count, offset);
  if (written > 0) {
    DiskCall made = call(DiskCall::Kind::kWrite, node_of(file));
    made.offset = offset;
    made.bytes.assign(static_cast<const char*>(from), static_cast<size_t>(written));
    log_.add(std::move(made));
  }
  return written;
}

int RecordingFileSystem::allocate(int file, off_t size_bytes) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::allocate(file, size_bytes);
  if (result != 0) return result;
  DiskCall made = call(DiskCall::Kind::kResize, node_of(file));
  made.offset = size_bytes;
  log_.add(std::move(made));
  return result;
}

int RecordingFileSystem::truncate(int file, off_t size_bytes) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::truncate(file, size_bytes);
  if (result != 0) return result;
  DiskCall made = call(DiskCall::Kind::kResize, node_of(file));
  made.offset = size_bytes;
  log_.add(std::move(made));
  return result;
}

int RecordingFileSystem::sync(int file) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::sync(file);
  if (result == 0 && node_of(file) >= 0) log_.add(call(DiskCall::Kind::kSync, node_of(file)));
  return result;
}

int RecordingFileSystem::make_directory_at(int directory, const char* name, mode_t mode) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::make_directory_at(directory, name, mode);
  struct stat status {};
  if (result != 0 || ::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return result;
  DiskCall made = call(DiskCall::Kind::kEntries, node_of(directory));
  made.entries[name] = log_.new_node(status.st_ino, true);
  made.makes_directory = true;
  log_.add(std::move(made));
  return result;
}

int RecordingFileSystem::rename_at(int directory, const char* from, const char* to, unsigned flags) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::rename_at(directory, from, to, flags);
  if (result != 0) return result;
  const int node = node_of(directory);
  const auto& names = log_.disk_.directories[node];
  DiskCall made = call(DiskCall::Kind::kEntries, node);
  made.entries[to] = names.at(from);
  made.entries[from] = (flags & RENAME_EXCHANGE) != 0 ? names.at(to) : -1;
  log_.add(std::move(made));
  return result;
}

int RecordingFileSystem::unlink_at(int directory, const char* name, int flags) {
  const std::lock_guard lock(log_.mutex_);
  const int result = FileSystem::unlink_at(directory, name, flags);
  if (result != 0) return result;
  DiskCall made = call(DiskCall::Kind::kEntries, node_of(directory));
  made.entries[name] = -1;
  log_.add(std::move(made));
  errno = 0;
  return result;
}

std::vector<size_t> unsynced_changes(const std::vector<DiskCall>& calls, size_t count, size_t ignored) {
  std::vector<size_t> result;
  // True for a rank and the node of a file or directory if a later call of this rank syncs the file or directory.
  std::map<std::pair<int, int>, bool> synced;
  for (size_t i = count; i-- > 0;) {
    const DiskCall& call = calls[i];
    if (call.kind == DiskCall::Kind::kAcknowledge) continue;
    if (call.kind == DiskCall::Kind::kSync) {
      if (i != ignored) synced[{call.rank, call.node}] = true;
    } else if (!synced[{call.rank, call.node}]) {
      result.push_back(i);
    }
  }
  return {result.rbegin(), result.rend()};
}

Disk after_power_loss(const std::vector<DiskCall>& calls, size_t count, size_t ignored,
                      const std::function<WriteOutcome(size_t)>& outcome) {
  Disk disk;
  disk.directories[0];
  for (size_t i = 0; i < count; ++i) {
    // A new directory exists even if its name in the parent directory is lost.
    if (!calls[i].makes_directory) continue;
    for (const auto& [name, node] : calls[i].entries) disk.directories[node];
  }
  const std::vector<size_t> open = unsynced_changes(calls, count, ignored);
  auto next = open.begin();
  for (size_t i = 0; i < count; ++i) {
    if (calls[i].kind == DiskCall::Kind::kSync || calls[i].kind == DiskCall::Kind::kAcknowledge) continue;
    const bool durable = next == open.end() || *next != i;
    if (!durable) ++next;
    const WriteOutcome what = durable ? WriteOutcome::kWritten : outcome(i);
    if (what == WriteOutcome::kLost) continue;
    if (what == WriteOutcome::kTorn && calls[i].kind == DiskCall::Kind::kWrite) {
      DiskCall half = calls[i];
      half.bytes.resize(half.bytes.size() / 2);
      disk.apply(half);
    } else {
      disk.apply(calls[i]);
    }
  }
  return disk;
}

}  // namespace aliquot::test
