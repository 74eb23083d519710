#include "kernels/system/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <random>
#include <unistd.h>
#include <utility>

#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

[[noreturn]] void throw_system_error(const char* action, const std::filesystem::path& path, int error) {
  throw FaultError(fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(error)));
}

/// Repeats the call while it fails with EINTR.
template <typename Call>
auto retry_on_interrupt(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

void File::swap(File& other) noexcept {
  std::swap(file_system_, other.file_system_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(direct_, other.direct_);
  path_.swap(other.path_);
}

File::~File() {
  if (descriptor_ >= 0) file_system_->close(descriptor_);
}

void File::fail(const char* action, int error) const { throw_system_error(action, path_, error); }

/// Turns direct I/O off. Returns false if it was already off or cannot be turned off. A file system may accept O_DIRECT
/// and later reject a transfer with EINVAL. Possible reasons are blocks of the file system that are larger than the
/// alignment of the transfer, and an unaligned remainder after a short transfer.
bool File::disable_direct_io() const {
  if (!direct_) return false;
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) < 0) return false;
  direct_ = false;
  return true;
}

void File::set_direct(bool on) {
  if (!on) {
    disable_direct_io();
    return;
  }
  const int flags = ::fcntl(descriptor_, F_GETFL);
  direct_ = flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
}

void File::write(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        retry_on_interrupt([&] { return file_system_->pwrite(descriptor_, bytes.data(), bytes.size(), offset); });
    if (written < 0 && errno == EINVAL && disable_direct_io()) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void File::read(std::span<std::byte> to, int64_t offset) const {
  while (!to.empty()) {
    const ssize_t count =
        retry_on_interrupt([&] { return file_system_->pread(descriptor_, to.data(), to.size(), offset); });
    if (count < 0 && errno == EINVAL && disable_direct_io()) continue;
    if (count < 0) fail("read", errno);
    if (count == 0)
      throw FaultError(fmt::format("cannot read {}: unexpected end of file at byte {}", path_.string(), offset));
    to = to.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

bool File::allocate(int64_t size_bytes) {
  if (size_bytes == 0) return true;
  if (retry_on_interrupt([&] { return file_system_->allocate(descriptor_, size_bytes); }) == 0) return true;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return false;
  const int error = errno;
  throw FaultError(fmt::format("cannot reserve {} of disk space for {}: {}: free disk space, or use another directory",
                               format_bytes(size_bytes), path_.string(), std::strerror(error)));
}

void File::resize(int64_t size_bytes) {
  if (retry_on_interrupt([&] { return file_system_->truncate(descriptor_, size_bytes); }) != 0) fail("resize", errno);
}

void File::sync() {
  if (retry_on_interrupt([&] { return file_system_->sync(descriptor_); }) != 0) fail("flush to disk", errno);
}

void File::close() {
  // No retry after EINTR: Linux has closed the descriptor, and another thread may have reused its number.
  if (descriptor_ >= 0 && file_system_->close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR)
    fail("close", errno);
}

int64_t File::size_bytes() const {
  struct stat status {};
  if (retry_on_interrupt([&] { return file_system_->status(descriptor_, &status); }) != 0)
    fail("get the size of", errno);
  return status.st_size;
}

bool File::is_regular() const {
  struct stat status {};
  if (retry_on_interrupt([&] { return file_system_->status(descriptor_, &status); }) != 0)
    fail("get the file type of", errno);
  return S_ISREG(status.st_mode);
}

int64_t File::free_bytes() const {
  struct statvfs space {};
  if (retry_on_interrupt([&] { return file_system_->space(descriptor_, &space); }) != 0)
    fail("get the free disk space at", errno);
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

Directory Directory::open(FileSystem& file_system, const std::filesystem::path& path) {
  const int descriptor = retry_on_interrupt(
      [&] { return file_system.open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (descriptor < 0) throw_system_error("open directory", path, errno);
  return Directory(File(file_system, descriptor, path));
}

File Directory::open_file(const std::string& name, int flags) const {
  const int descriptor = retry_on_interrupt([&] {
    return file_.file_system_->open_at(file_.descriptor_, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0644);
  });
  if (descriptor < 0) {
    const int error = errno;
    throw_system_error((flags & O_CREAT) != 0 ? "create" : "open", path() / name, error);
  }
  return File(*file_.file_system_, descriptor, path() / name);
}

Directory Directory::open_directory(const std::string& name) const {
  return Directory(open_file(name, O_RDONLY | O_DIRECTORY));
}

File Directory::create(const std::string& name) const { return open_file(name, O_WRONLY | O_CREAT | O_EXCL); }

File Directory::create_unnamed() const {
  const int descriptor = retry_on_interrupt(
      [&] { return file_.file_system_->open_at(file_.descriptor_, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600); });
  if (descriptor >= 0) return File(*file_.file_system_, descriptor, path() / "(unnamed file)");
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) throw_system_error("create a file in", path(), errno);
  // This file system has no O_TMPFILE: create a file with a random name and unlink it.
  std::random_device random;
  for (int i = 0; i < 100; ++i) {
    const std::string name = fmt::format(".aliquot-{:08x}{:08x}", random(), random());
    const int named = retry_on_interrupt([&] {
      return file_.file_system_->open_at(file_.descriptor_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    });
    if (named < 0 && errno == EEXIST) continue;
    if (named < 0) throw_system_error("create a file in", path(), errno);
    File file(*file_.file_system_, named, path() / name);
    if (!remove(name)) throw_system_error("remove", path() / name, errno);
    return file;
  }
  throw_system_error("create a file in", path(), EEXIST);
}

File Directory::open_for_writing(const std::string& name, bool direct) const {
  if (direct) {
    const int descriptor = retry_on_interrupt([&] {
      return file_.file_system_->open_at(file_.descriptor_, name.c_str(), O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC,
                                         0);
    });
    if (descriptor >= 0) {
      File file(*file_.file_system_, descriptor, path() / name);
      file.direct_ = true;
      return file;
    }
    if (errno != EINVAL)
      throw_system_error("open", path() / name, errno);  // EINVAL: this file system has no direct I/O
  }
  return open_file(name, O_WRONLY);
}

File Directory::open_for_reading(const std::string& name) const { return open_file(name, O_RDONLY | O_NONBLOCK); }

void Directory::make_directory(const std::string& name) const {
  if (retry_on_interrupt(
          [&] { return file_.file_system_->make_directory_at(file_.descriptor_, name.c_str(), 0755); }) != 0) {
    throw_system_error("create directory", path() / name, errno);
  }
}

void Directory::rename(const std::string& from, const std::string& to) const {
  const auto call = [&](unsigned flags) {
    return retry_on_interrupt(
        [&] { return file_.file_system_->rename_at(file_.descriptor_, from.c_str(), to.c_str(), flags); });
  };
  int result = call(RENAME_NOREPLACE);
  // EINVAL: this file system has no RENAME_NOREPLACE. Plain rename never replaces a directory that is not empty.
  if (result != 0 && errno == EINVAL) result = call(0);
  if (result != 0) throw_system_error(fmt::format("create {} by renaming", to).c_str(), path() / from, errno);
}

void Directory::rename_file(const std::string& from, const std::string& to) const {
  FileSystem& file_system = *file_.file_system_;
  int result = retry_on_interrupt(
      [&] { return file_system.rename_at(file_.descriptor_, from.c_str(), to.c_str(), RENAME_NOREPLACE); });
  if (result != 0 && errno == EINVAL) {
    result = retry_on_interrupt([&] { return file_system.link_at(file_.descriptor_, from.c_str(), to.c_str()); });
    if (result == 0) result = file_system.unlink_at(file_.descriptor_, from.c_str(), 0);
  }
  if (result != 0) throw_system_error(fmt::format("create {} by renaming", to).c_str(), path() / from, errno);
}

void Directory::exchange(const std::string& from, const std::string& to, const std::string& aside) const {
  const int result = retry_on_interrupt(
      [&] { return file_.file_system_->rename_at(file_.descriptor_, from.c_str(), to.c_str(), RENAME_EXCHANGE); });
  if (result == 0) return;
  if (errno != EINVAL) throw_system_error(fmt::format("exchange {} with", to).c_str(), path() / from, errno);
  rename(to, aside);
  try {
    rename(from, to);
  } catch (...) {
    rename(aside, to);
    throw;
  }
}

void Directory::sync() const { file_.sync(); }

bool Directory::remove(const std::string& name) const noexcept {
  try {
    FileSystem& file_system = *file_.file_system_;
    const int file = file_.descriptor_;
    if (file_system.unlink_at(file, name.c_str(), 0) == 0 || errno == ENOENT) return true;
    {
      const Directory inner = open_directory(name);
      for (const auto& entry : std::filesystem::directory_iterator(inner.path())) {
        if (!inner.remove(entry.path().filename())) return false;
      }
    }
    return file_system.unlink_at(file, name.c_str(), AT_REMOVEDIR) == 0;
  } catch (...) {
    return false;
  }
}

bool Directory::exists(const std::string& name) const {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path() / name, error));
}

std::vector<std::string> Directory::names() const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(path(), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename());
  if (error) throw_system_error("list directory", path(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool Directory::is_directory(const std::string& name) const {
  std::error_code error;
  return std::filesystem::is_directory(std::filesystem::symlink_status(path() / name, error));
}

}  // namespace aliquot
