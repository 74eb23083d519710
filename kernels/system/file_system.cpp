#include "kernels/system/file_system.h"

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace aliquot {

int FileSystem::open_at(int directory, const char* name, int flags, mode_t mode) {
  return ::openat(directory, name, flags, mode);
}
int FileSystem::close(int file) { return ::close(file); }
ssize_t FileSystem::pread(int file, void* to, size_t count, off_t offset) { return ::pread(file, to, count, offset); }
ssize_t FileSystem::pwrite(int file, const void* from, size_t count, off_t offset) {
  return ::pwrite(file, from, count, offset);
}
int FileSystem::allocate(int file, off_t size_bytes) { return ::fallocate(file, 0, 0, size_bytes); }
int FileSystem::truncate(int file, off_t size_bytes) { return ::ftruncate(file, size_bytes); }
int FileSystem::sync(int file) { return ::fsync(file); }
int FileSystem::status(int file, struct stat* to) { return ::fstat(file, to); }
int FileSystem::space(int file, struct statvfs* to) { return ::fstatvfs(file, to); }
int FileSystem::make_directory_at(int directory, const char* name, mode_t mode) {
  return ::mkdirat(directory, name, mode);
}
int FileSystem::rename_at(int directory, const char* from, const char* to, unsigned flags) {
  return ::renameat2(directory, from, directory, to, flags);
}
int FileSystem::link_at(int directory, const char* from, const char* to) {
  return ::linkat(directory, from, directory, to, 0);
}
int FileSystem::unlink_at(int directory, const char* name, int flags) { return ::unlinkat(directory, name, flags); }

FileSystem& FileSystem::system() {
  static FileSystem file_system;
  return file_system;
}

}  // namespace aliquot
