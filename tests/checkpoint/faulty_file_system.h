#pragma once
// A file system whose calls fail on request.

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include "kernels/system/file_system.h"

namespace aliquot::test {

enum class SystemCall {
  kOpen,
  kClose,
  kRead,
  kWrite,
  kAllocate,
  kTruncate,
  kSync,
  kStatus,
  kSpace,
  kMakeDirectory,
  kRename,
  kUnlink
};
inline constexpr int kSystemCallCount = 12;

constexpr std::string_view name(SystemCall call) {
  constexpr std::string_view kNames[] = {"open",  "close",  "read",  "write", "allocate", "truncate",
                                         "fsync", "status", "space", "mkdir", "rename",   "unlink"};
  return kNames[static_cast<size_t>(call)];
}

/// The fault to inject: call number `nth` of kind `call`, counted from 0, fails with `error`. With `from_then_on`, all
/// later calls of this kind fail too. With `short_transfer`, a read or write transfers half of the bytes and succeeds.
struct Fault {
  SystemCall call = SystemCall::kOpen;
  int nth = -1;  // index of the call that fails; -1: none
  int error = EIO;
  bool from_then_on = false;
  bool short_transfer = false;
};

/// The file system of one rank. Counts its calls by kind.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(Fault fault = {}) : fault_(fault) {}

  int count(SystemCall call) const { return counts_[static_cast<size_t>(call)]; }

  int open_at(int directory, const char* path, int flags, mode_t mode) override {
    return fails(SystemCall::kOpen) ? -1 : FileSystem::open_at(directory, path, flags, mode);
  }
  int close(int file) override {
    const bool fault = fails(SystemCall::kClose);
    const int result = FileSystem::close(file);  // as on Linux, a failed close also releases the descriptor
    if (fault) errno = fault_.error;
    return fault ? -1 : result;
  }
  ssize_t pread(int file, void* to, size_t count, off_t offset) override {
    if (!fails(SystemCall::kRead)) return FileSystem::pread(file, to, count, offset);
    return fault_.short_transfer && count > 1 ? FileSystem::pread(file, to, count / 2, offset) : failure();
  }
  ssize_t pwrite(int file, const void* from, size_t count, off_t offset) override {
    if (!fails(SystemCall::kWrite)) return FileSystem::pwrite(file, from, count, offset);
    if (!fault_.short_transfer || count <= 1) return failure();
    // Write half, in whole sectors if possible: the rest of a direct write must stay aligned.
    return FileSystem::pwrite(file, from, count >= 1024 ? count / 1024 * 512 : count / 2, offset);
  }
  int allocate(int file, off_t size_bytes) override {
    return fails(SystemCall::kAllocate) ? -1 : FileSystem::allocate(file, size_bytes);
  }
  int truncate(int file, off_t size_bytes) override {
    return fails(SystemCall::kTruncate) ? -1 : FileSystem::truncate(file, size_bytes);
  }
  int sync(int file) override { return fails(SystemCall::kSync) ? -1 : FileSystem::sync(file); }
  int status(int file, struct stat* to) override {
    return fails(SystemCall::kStatus) ? -1 : FileSystem::status(file, to);
  }
  int space(int file, struct statvfs* to) override {
    return fails(SystemCall::kSpace) ? -1 : FileSystem::space(file, to);
  }
  int make_directory_at(int directory, const char* path, mode_t mode) override {
    return fails(SystemCall::kMakeDirectory) ? -1 : FileSystem::make_directory_at(directory, path, mode);
  }
  int rename_at(int directory, const char* from, const char* to, unsigned flags) override {
    return fails(SystemCall::kRename) ? -1 : FileSystem::rename_at(directory, from, to, flags);
  }
  int unlink_at(int directory, const char* path, int flags) override {
    return fails(SystemCall::kUnlink) ? -1 : FileSystem::unlink_at(directory, path, flags);
  }

 private:
  // Counts the call and returns whether it must fail. The thread of the rank and its IoLane call this function. They
  // never call it at the same time for the kind of call that fails.
  bool fails(SystemCall call) {
    const int index = counts_[static_cast<size_t>(call)]++;
    const bool hit =
        call == fault_.call && fault_.nth >= 0 && (index == fault_.nth || (fault_.from_then_on && index > fault_.nth));
    if (hit) errno = fault_.error;
    return hit;
  }
  ssize_t failure() const {
    errno = fault_.error;
    return -1;
  }

  Fault fault_;
  std::array<int, kSystemCallCount> counts_{};
};

}  // namespace aliquot::test
