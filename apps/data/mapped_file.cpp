#include "apps/data/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UsageError(path.string() + ": " + why + ".");
}

}  // namespace

MappedFile::Descriptor::~Descriptor() {
  if (number >= 0) close(number);
}

// Without O_NONBLOCK, open() of a pipe would block.
MappedFile::MappedFile(const std::filesystem::path& path)
    : file_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {
  if (file_.number < 0) refuse(path, std::strerror(errno));
  struct stat status = {};
  if (fstat(file_.number, &status) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  if (status.st_size == 0) refuse(path, "the file is empty: expected a file of tokens");
  size_bytes_ = status.st_size;
  void* mapped = mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_SHARED, file_.number, 0);
  if (mapped == MAP_FAILED) refuse(path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

int64_t MappedFile::current_size_bytes() const {
  struct stat status = {};
  return fstat(file_.number, &status) == 0 ? int64_t{status.st_size} : size_bytes_;
}

// Ignores failures, which cost only speed or memory.
void MappedFile::advise(int64_t offset, int64_t count_bytes, int advice) const {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE), begin = offset / page_bytes * page_bytes;
  const int64_t end = std::min(offset + count_bytes, size_bytes_);
  if (begin < end) madvise(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(end - begin), advice);
}

void MappedFile::prefetch(int64_t offset, int64_t count_bytes) const { advise(offset, count_bytes, MADV_WILLNEED); }

void MappedFile::drop_pages(int64_t offset, int64_t count_bytes) const { advise(offset, count_bytes, MADV_DONTNEED); }

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_)); }

}  // namespace aliquot
