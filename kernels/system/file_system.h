#pragma once
// The system calls on files as virtual functions, so that tests can make any of them fail.

#include <cstddef>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

namespace aliquot {

/// Each function makes one system call and returns its result. The result is -1 with errno for a failure. pread() and
/// pwrite() may transfer fewer bytes than requested. Thread-safe. Derived classes can simulate failures.
class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  virtual int open_at(int directory, const char* name, int flags, mode_t mode);
  virtual int close(int file);
  virtual ssize_t pread(int file, void* to, size_t count, off_t offset);
  virtual ssize_t pwrite(int file, const void* from, size_t count, off_t offset);
  virtual int allocate(int file, off_t size_bytes);  // fallocate(file, 0, 0, size_bytes)
  virtual int truncate(int file, off_t size_bytes);  // ftruncate
  virtual int sync(int file);                        // fsync
  virtual int status(int file, struct stat* to);     // fstat
  virtual int space(int file, struct statvfs* to);   // fstatvfs
  virtual int make_directory_at(int directory, const char* name, mode_t mode);
  virtual int rename_at(int directory, const char* from, const char* to, unsigned flags);  // renameat2
  virtual int link_at(int directory, const char* from, const char* to);                    // linkat
  virtual int unlink_at(int directory, const char* name, int flags);

  /// Returns the instance that makes the system calls.
  static FileSystem& system();
};

}  // namespace aliquot
