#pragma once
// A read-only memory mapping of a file.

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace aliquot {

/// Maps the whole file. The constructor throws UsageError with the system's reason if the file cannot be mapped, and
/// for empty and non-regular files.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  /// The current size of the file, which may have changed. Reading the mapping beyond this size raises SIGBUS.
  int64_t current_size_bytes() const;

  /// Asks the system to read these bytes ahead.
  void prefetch(int64_t offset, int64_t count_bytes) const;
  /// Unmaps the pages of these bytes from this process until they are read again. The pages may stay in the page cache.
  void drop_pages(int64_t offset, int64_t count_bytes) const;

 private:
  // A class with a destructor, so that the file is closed if the constructor of MappedFile throws.
  struct Descriptor {
    int number;
    ~Descriptor();
  };

  void advise(int64_t offset, int64_t count_bytes, int advice) const;

  Descriptor file_;
  const std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace aliquot
