#pragma once
// Writes the pages of one rank to state.h5.

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/file/file_image.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/file/tile_parts.h"
#include "kernels/system/file.h"

namespace aliquot {

/// Copies pages into staging memory, hashes them there, and submits the writes to an IoLane. All arguments must outlive
/// it. Every function may throw the FaultError of an earlier write.
class PageWriter {
 public:
  PageWriter(const FileImage& image, File& file, const StagingRing& ring) : image_(image), file_(file), ring_(ring) {}

  /// Writes the pages of this rank outside windows.
  void write_runs();
  /// Writes the pages of this rank in a window. Uses the page cache, because direct I/O is slow for small writes. Call
  /// after write_runs().
  void write_window(const PageRun& window);
  /// Waits for all writes. Returns the written parts with their checksums.
  std::vector<TilePart> finish();
  /// Returns whether the pages outside windows were written with direct I/O. Call after finish().
  bool is_direct() const { return windows_replace_direct_io_ || file_.direct(); }

 private:
  struct Write {
    std::span<const std::byte> bytes;
    int64_t offset;
  };

  uint32_t write(int64_t begin, int64_t count);
  uint32_t fill(std::span<std::byte> bytes, int64_t begin, uint32_t crc) const;
  void submit();

  const FileImage& image_;
  File& file_;
  const StagingRing& ring_;
  std::vector<TilePart> parts_;
  std::vector<Write> writes_;  // writes from the current chunk that have not been submitted
  bool windows_replace_direct_io_ = false;
  int64_t used_bytes_ = 0;  // of the current chunk
  int64_t submitted_ = 0;   // number of submitted chunks, which is also the ticket of the last one
  IoLane lane_;             // last member: its thread ends before the members that it uses are destroyed
};

}  // namespace aliquot
