#include "apps/tokenize/text_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "kernels/system/error.h"

namespace aliquot {

void TextFile::refuse(const std::string& why) const { throw UsageError(fmt::format("{}: {}.", path_, why)); }

TextFile::TextFile(const std::filesystem::path& path) : path_(path.string()) {
  constexpr unsigned kBufferBytes = 256 << 10;
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(fmt::format("the file cannot be read: {}", std::strerror(errno)));
  struct stat status = {};
  const bool is_directory = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  if (!is_directory) file_ = gzdopen(descriptor, "rb");
  if (file_ == nullptr) {
    close(descriptor);
    refuse(is_directory ? "it is a directory: name its files" : "zlib has too little memory");
  }
  gzbuffer(file_, kBufferBytes);
}

TextFile::~TextFile() { gzclose_r(file_); }

bool TextFile::read(std::string& text, size_t most) {
  constexpr size_t kLargestRead = size_t{1} << 30;
  most = std::min(most, kLargestRead);
  const size_t before = text.size();
  text.resize(before + most);
  errno = 0;
  const int count = gzread(file_, text.data() + before, static_cast<unsigned>(most));
  text.resize(before + static_cast<size_t>(std::max(count, 0)));
  int code = Z_OK;
  const char* message = gzerror(file_, &code);
  if (code == Z_ERRNO) refuse(fmt::format("the file cannot be read: {}", std::strerror(errno)));
  if (code == Z_BUF_ERROR) refuse("the compressed file is truncated");
  if (count < 0 || (code != Z_OK && code != Z_STREAM_END))
    refuse(fmt::format("the compressed file is damaged: {}", message));
  return count > 0;
}

int64_t TextFile::position_bytes() const { return std::max<int64_t>(0, gzoffset(file_)); }

}  // namespace aliquot
