#include "apps/data/input_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw UsageError(path.string() + ": " + why + ".");
}

}  // namespace

InputFile::Descriptor::~Descriptor() {
  if (number >= 0) close(number);
}

// Without O_NONBLOCK, open() of a pipe would block.
InputFile::InputFile(const std::filesystem::path& path)
    : path_(path.string()), file_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {
  if (file_.number < 0) refuse(path, std::strerror(errno));
  struct stat status = {};
  if (fstat(file_.number, &status) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  if (status.st_size == 0) refuse(path, "the file is empty: expected a file of tokens");
  size_bytes_ = status.st_size;
}

void InputFile::read(int64_t offset, void* to, int64_t count_bytes) const {
  auto* next = static_cast<std::byte*>(to);
  while (count_bytes > 0) {
    const ssize_t got = pread(file_.number, next, static_cast<size_t>(count_bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FaultError("Reading " + path_ + " failed: " + std::strerror(errno) + ".");
    if (got == 0)
      throw FaultError(path_ + " has become shorter since the run began: tokens that the run needs are missing.");
    next += got;
    offset += got;
    count_bytes -= got;
  }
}

std::string InputFile::read_text(int64_t offset, int64_t count_bytes) const {
  std::string text(static_cast<size_t>(count_bytes), '\0');
  read(offset, text.data(), count_bytes);
  return text;
}

// Ignores failures, which cost only speed.
void InputFile::prefetch(int64_t offset, int64_t count_bytes) const {
  posix_fadvise(file_.number, offset, count_bytes, POSIX_FADV_WILLNEED);
}

}  // namespace aliquot
