#pragma once
// A file of data that is open for reading.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace aliquot {

/// Reads with pread(): if another program truncates the file or its disk fails, a read of a mapping would end the
/// process with SIGBUS. Several threads may call all functions at the same time.
class InputFile {
 public:
  /// Throws UsageError with the system's reason if the file cannot be opened, and for empty and non-regular files.
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The size of the file when it was opened.
  int64_t size_bytes() const { return size_bytes_; }
  /// Reads `count_bytes` bytes from `offset` into `to`. The range must be within size_bytes(). Throws FaultError if the
  /// file has become shorter, or if the system cannot read it.
  void read(int64_t offset, void* to, int64_t count_bytes) const;
  std::string read_text(int64_t offset, int64_t count_bytes) const;
  /// Asks the system to read these bytes ahead.
  void prefetch(int64_t offset, int64_t count_bytes) const;

 private:
  // A class with a destructor, so that the file is closed if the constructor of InputFile throws.
  struct Descriptor {
    int number;
    ~Descriptor();
  };

  std::string path_;
  Descriptor file_;
  int64_t size_bytes_ = 0;
};

}  // namespace aliquot
