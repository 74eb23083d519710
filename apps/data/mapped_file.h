#pragma once
// A file in memory, read-only.

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace aliquot {

/// The whole file, mapped while this lives. Throws UsageError, saying what the system said, when it cannot be.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  /// What it is by now: who reads beyond that gets SIGBUS.
  int64_t current_size_bytes() const;

  /// Asks the system to read these bytes ahead.
  void prefetch(int64_t offset, int64_t count_bytes) const;
  /// Unmaps the pages of these bytes from this process until they are read again. They may stay in the page cache.
  void drop_pages(int64_t offset, int64_t count_bytes) const;

 private:
  // Closes on every way out.
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
