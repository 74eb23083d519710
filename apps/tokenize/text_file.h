#pragma once
// Reads a file of text, which may be compressed with gzip.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

struct gzFile_s;

namespace aliquot {

class TextFile {
 public:
  /// Throws UsageError if the file cannot be opened.
  explicit TextFile(const std::filesystem::path& path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  /// Appends up to `most` decompressed bytes to `text`. Returns false at the end of the file. Throws UsageError if the
  /// file cannot be read or its compressed data are damaged or truncated.
  bool read(std::string& text, size_t most);
  /// The number of bytes of the file that are read so far, before decompression.
  int64_t position_bytes() const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;

  std::string path_;
  gzFile_s* file_ = nullptr;
};

}  // namespace aliquot
