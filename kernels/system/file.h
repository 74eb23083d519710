#pragma once
// Files and directories, owned, with whole reads and writes and errors that are sentences.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/system/file_system.h"

namespace aliquot {

/// A file descriptor, owned. Move-only. Every failure throws FaultError: what could not be done to which file, and why.
/// The destructor closes and forgets; where the close matters, call close().
class File {
 public:
  File() = default;
  File(FileSystem& file_system, int descriptor, std::filesystem::path path)
      : file_system_(&file_system), descriptor_(descriptor), path_(std::move(path)) {}
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept {
    File(std::move(other)).swap(*this);
    return *this;
  }
  ~File();

  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }
  bool direct() const { return direct_; }

  void write(std::span<const std::byte> bytes, int64_t offset);
  /// Exactly that many bytes; an end of file before them is an error.
  void read(std::span<std::byte> to, int64_t offset) const;
  /// Reserves the space, so that no later write finds the disk full. False where the file system cannot.
  bool allocate(int64_t size_bytes);
  void resize(int64_t size_bytes);
  void sync();
  void close();
  /// Turns direct I/O on or off, as far as the file system can: direct() tells.
  void set_direct(bool on);
  int64_t size_bytes() const;
  bool is_regular() const;
  int64_t free_bytes() const;  // left to this user on the file's file system

 private:
  friend class Directory;
  void swap(File& other) noexcept;
  bool disable_direct_io() const;
  [[noreturn]] void fail(const char* what, int error) const;

  FileSystem* file_system_ = nullptr;
  int descriptor_ = -1;
  mutable bool direct_ = false;  // turned off when the file system refuses a transfer
  std::filesystem::path path_;
};

/// An open directory. What lies in it is named relative to it, and no symbolic link beneath it is followed.
class Directory {
 public:
  /// Throws FaultError when there is none.
  static Directory open(FileSystem& file_system, const std::filesystem::path& path);
  Directory open_directory(const std::string& name) const;

  /// For reading and writing, without a name: gone with the last who has it open.
  File create_unnamed() const;
  /// For writing; fails if it exists. With `direct`, unbuffered where the file system can.
  File create(const std::string& name) const;
  File open_for_writing(const std::string& name, bool direct) const;
  File open_for_reading(const std::string& name) const;  // never blocks, not even on a pipe

  void make_directory(const std::string& name) const;
  void rename(const std::string& from, const std::string& to) const;  // replaces nothing
  /// Swaps two names in one step; where the file system cannot, renames `to` to `aside` and then `from` to `to`.
  void exchange(const std::string& from, const std::string& to, const std::string& aside) const;
  void sync() const;
  void close() { file_.close(); }
  /// Removes what is named, and all in it. False, with nothing thrown, when that failed; true when there was none.
  bool remove(const std::string& name) const noexcept;
  bool exists(const std::string& name) const;
  std::vector<std::string> names() const;            // sorted, of all that is there
  bool is_directory(const std::string& name) const;  // itself, and no link to one

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t free_bytes() const { return file_.free_bytes(); }

 private:
  explicit Directory(File file) : file_(std::move(file)) {}
  File open_file(const std::string& name, int flags) const;
  mutable File file_;
};

}  // namespace aliquot
