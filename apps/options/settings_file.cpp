#include "apps/options/settings_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20, kChunkBytes = size_t{1} << 16;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string read_settings_file(const std::string& option, const std::string& path, const std::string& hint) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError((option.empty() ? path : option + " " + path) + ": the file cannot be read (" + why + ")" + hint +
                     ".");
  };
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rbe"));
  if (!file) refuse(std::strerror(errno));
  std::string text;
  for (size_t got = 1; got > 0;) {
    const size_t before = text.size();
    if (before > kMaxBytes) refuse("it is larger than 16 MiB");
    text.resize(before + kChunkBytes);
    got = std::fread(text.data() + before, 1, kChunkBytes, file.get());
    text.resize(before + got);
  }
  if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));
  return text;
}

}  // namespace aliquot
