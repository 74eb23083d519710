#pragma once
// A checkpoint opened for reading. Callers verify the data before they use it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/file/manifest.h"
#include "kernels/system/file.h"
#include "kernels/system/ledger.h"

namespace aliquot {

/// Bytes [begin, begin + count) of a file.
struct FileRange {
  int64_t begin = 0, count = 0;
  bool through_page_cache = false;  // true: read without direct I/O, which is slow for small ranges
};

/// Reads the range of the file into `to`. Called on the I/O thread of read_ahead().
using ReadChunk = std::function<void(std::span<std::byte> to, const FileRange& from)>;
/// Receives `bytes`, a part of range `index` that begins at `offset` of the file. Called on the thread that called
/// read_ahead(). `bytes` is valid until the call returns.
using ConsumeChunk = std::function<void(std::size_t index, std::span<const std::byte> bytes, int64_t offset)>;

/// Reads the ranges in chunks of a StagingRing and passes the chunks to `consume` in order, while the next ones are
/// read. If a range begins on a page boundary, so do its chunks, in the file and in memory. Small ranges share the
/// memory of a chunk. Throws what `read` or `consume` throws.
void read_ahead(std::span<const FileRange> ranges, const ReadChunk& read, const ConsumeChunk& consume, Ledger* ledger);

/// Returns the text of path/manifest.json without verifying it. Throws CheckpointError if it is absent, not a regular
/// file, or too large.
std::string read_manifest_text(FileSystem& file_system, const std::filesystem::path& path);

/// The open state.h5 of one checkpoint. The same descriptor is used for verification and reads, so that the file cannot
/// be replaced between them. All calls throw CheckpointError.
class CheckpointReader {
 public:
  /// Opens the file and checks that it is a regular file of the size in the manifest.
  CheckpointReader(FileSystem& file_system, const std::filesystem::path& path, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }

  /// Verifies this rank's part of the tiles, which is 1/rank_count of all tiles. Calls `progress` with the size of each
  /// verified tile, on the calling thread.
  void verify_tiles(int rank, int rank_count, Ledger* ledger, const std::function<void(int64_t)>& progress = {});

  /// Compares the checksums of all tiles with the manifest.
  void check_tiles(const std::vector<uint32_t>& crcs) const;

  /// Reads ranges of whole pages with read_ahead(). Uses direct I/O for large files if the file system supports it.
  void read_direct(std::span<const FileRange> ranges, const ConsumeChunk& consume, Ledger* ledger);

  /// Compares all bytes outside the tensors with those that this build would write for the manifest. This ensures that
  /// no link, filter or external storage is hidden in the file, and that HDF5 never parses untrusted bytes. Does
  /// nothing if another version of HDF5 laid out the file, because its bytes may differ. Tensors are then read at the
  /// offsets in the verified manifest.
  void verify_structure() const;

  /// Reads bytes [offset, offset + to.size()), which must be within the file.
  void read(std::span<std::byte> to, int64_t offset) const;

 private:
  [[noreturn]] void throw_corrupt_tile(int64_t tile) const;

  std::filesystem::path path_;
  Manifest manifest_;
  File file_;
};

}  // namespace aliquot
