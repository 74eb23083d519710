#pragma once
// A checkpoint opened for reading: nothing in it is believed before it is verified.

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
};

/// Leaves bytes of the file, from `offset` on, at `to`. Called from a thread that read_ahead() makes.
using ReadChunk = std::function<void(std::span<std::byte> to, int64_t offset)>;
/// `bytes`, a part of range `index`, lie at `offset` of the file. Called from the caller's thread; they are its own until
/// it returns.
using ConsumeChunk = std::function<void(std::size_t index, std::span<const std::byte> bytes, int64_t offset)>;

/// Reads the ranges, a chunk of a staging ring at a time, and hands the chunks on in order. A range that begins on a page
/// is read in chunks that do. Throws what either of the two throws.
void read_ahead(std::span<const FileRange> ranges, const ReadChunk& read, const ConsumeChunk& consume, Ledger* ledger);

/// The text of path/manifest.json, not yet verified. Throws CheckpointError: absent, no regular file, too large.
std::string read_manifest_text(FileSystem& file_system, const std::filesystem::path& path);

/// state.h5 of one checkpoint, held open from verification to the last read. Throws CheckpointError.
class CheckpointReader {
 public:
  /// Opens the file and checks that it is a regular one of exactly the manifest's size.
  CheckpointReader(FileSystem& file_system, const std::filesystem::path& path, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }

  /// Verifies this rank's share of the tiles, one rank_count-th. `progress` is told the bytes done, from this thread.
  void verify_tiles(int rank, int rank_count, Ledger* ledger, const std::function<void(int64_t)>& progress = {});

  /// The same of all tiles, from checksums made elsewhere.
  void check_tiles(const std::vector<uint32_t>& crcs) const;

  /// Reads ranges of whole pages, past the page cache where the file system can, and hands them on (read_ahead()).
  void read_direct(std::span<const FileRange> ranges, const ConsumeChunk& consume, Ledger* ledger);

  /// Compares all that is no tensor's, byte for byte, with what this build writes for such a manifest: no link, filter
  /// or foreign storage can hide there, and HDF5 never parses what a stranger wrote. Where another version of HDF5 laid
  /// the file out there is nothing to compare with, and nothing is: tensors are read where the (checked) manifest says.
  void verify_structure() const;

  /// Bytes that lie in the file.
  void read(std::span<std::byte> to, int64_t offset) const;

 private:
  [[noreturn]] void throw_corrupt_tile(int64_t tile) const;

  std::filesystem::path path_;
  Manifest manifest_;
  File file_;
};

}  // namespace aliquot
