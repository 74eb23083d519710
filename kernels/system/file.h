#pragma once
// RAII for files and directories. Reads and writes are never partial, and errors are exceptions.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/system/file_system.h"

namespace aliquot {

/// Owns a file descriptor. Move-only. Every failure throws FaultError with the operation, the path and the reason.
/// The destructor ignores errors of close(2). Call close() to see them.
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
  /// Fills `to`. Throws if the file has too few bytes.
  void read(std::span<std::byte> to, int64_t offset) const;
  /// Reserves disk space, so that later writes cannot fail for lack of space. Returns false if the file system has no
  /// fallocate().
  bool allocate(int64_t size_bytes);
  void resize(int64_t size_bytes);
  void sync();
  void close();
  /// Turns direct I/O on or off. If the file system does not support it, direct() stays false.
  void set_direct(bool on);
  int64_t size_bytes() const;
  bool is_regular() const;
  int64_t free_bytes() const;  // bytes that unprivileged users may still allocate on the file system

 private:
  friend class Directory;
  void swap(File& other) noexcept;
  bool disable_direct_io() const;
  [[noreturn]] void fail(const char* action, int error) const;

  FileSystem* file_system_ = nullptr;
  int descriptor_ = -1;
  mutable bool direct_ = false;  // cleared when the file system rejects a transfer
  std::filesystem::path path_;
};

/// An open directory. Names are relative to it, and symbolic links in it are not followed. All functions throw
/// FaultError on failure, except remove(), exists() and is_directory().
class Directory {
 public:
  static Directory open(FileSystem& file_system, const std::filesystem::path& path);
  Directory open_directory(const std::string& name) const;

  /// Creates a file without a name, for reading and writing. The system deletes it when its last descriptor is closed.
  File create_unnamed() const;
  /// Creates a file for writing. Fails if it exists.
  File create(const std::string& name) const;
  /// Opens an existing file. With `direct`, uses direct I/O if the file system supports it.
  File open_for_writing(const std::string& name, bool direct) const;
  File open_for_reading(const std::string& name) const;  // uses O_NONBLOCK, so opening a pipe does not block

  void make_directory(const std::string& name) const;
  /// Fails if `to` exists. On a file system without RENAME_NOREPLACE, fails only if `to` is a directory with entries.
  void rename(const std::string& from, const std::string& to) const;
  /// Renames a file. Fails if `to` exists, on every file system. On a file system without RENAME_NOREPLACE, makes a
  /// second link to the file and then removes the first.
  void rename_file(const std::string& from, const std::string& to) const;
  /// Swaps two names atomically. On a file system without RENAME_EXCHANGE, renames `to` to `aside` and `from` to `to`.
  void exchange(const std::string& from, const std::string& to, const std::string& aside) const;
  void sync() const;
  void close() { file_.close(); }
  /// Removes a file, or a directory and its contents. Returns false on failure, and true if `name` did not exist.
  bool remove(const std::string& name) const noexcept;
  bool exists(const std::string& name) const;
  std::vector<std::string> names() const;            // the names of all entries, sorted
  bool is_directory(const std::string& name) const;  // false for a symbolic link

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t free_bytes() const { return file_.free_bytes(); }

 private:
  explicit Directory(File file) : file_(std::move(file)) {}
  File open_file(const std::string& name, int flags) const;
  mutable File file_;
};

}  // namespace aliquot
