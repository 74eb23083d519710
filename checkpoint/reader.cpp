#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/hash/crc32c.h"
#include "checkpoint/save.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

constexpr int64_t kMinDirectBytes = 8 * kTileBytes;  // smaller files are read through the page cache

/// Converts a FaultError of the file system to a CheckpointError that names the checkpoint.
template <typename Call>
auto rethrow_as_checkpoint_error(const std::filesystem::path& path, Call&& call) {
  try {
    return call();
  } catch (const FaultError& error) {
    throw CheckpointError(fmt::format("checkpoint {} cannot be used: {}", path.string(), error.what()));
  }
}

File open_regular(FileSystem& file_system, const std::filesystem::path& path, const char* name) {
  File file = Directory::open(file_system, path).open_for_reading(name);
  if (!file.is_regular()) throw FaultError(fmt::format("{} is not a regular file", name));
  return file;
}

/// Throws CheckpointError, with an explanation, if `path` is not a checkpoint but contains checkpoints.
void refuse_folder_of_checkpoints(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path / kManifestFile, error)) return;
  const std::vector<FoundCheckpoint> found = list_checkpoints(path);
  if (found.empty()) return;
  throw CheckpointError(fmt::format(
      "{} is not a checkpoint but a directory of {} checkpoint{}: load one of them, such as {}, or use load_newest()",
      path.string(), found.size(), found.size() == 1 ? "" : "s", found.back().path.string()));
}

/// Throws FaultError if the directory has the name of another step, so that its order among checkpoints is wrong.
void check_directory_name(const std::filesystem::path& path, int64_t step) {
  const auto directory = path.has_filename() ? path.filename() : path.parent_path().filename();
  const auto named = checkpoint_step(directory.string());
  if (!named || *named == step) return;
  throw FaultError(fmt::format("it has the name of step {}, but its manifest has step {}: rename it to {}", *named,
                               step, checkpoint_name(step)));
}

}  // namespace

std::string read_manifest_text(FileSystem& file_system, const std::filesystem::path& path) {
  refuse_folder_of_checkpoints(path);
  return rethrow_as_checkpoint_error(path, [&] {
    const File file = open_regular(file_system, path, kManifestFile);
    const int64_t size_bytes = file.size_bytes();
    if (size_bytes > kManifestBytesLimit)
      throw FaultError(fmt::format("{} has {} bytes, and the limit for a manifest is {}", kManifestFile, size_bytes,
                                   kManifestBytesLimit));
    std::string text(static_cast<size_t>(size_bytes), '\0');
    file.read(std::as_writable_bytes(std::span(text)), 0);
    return text;
  });
}

CheckpointReader::CheckpointReader(FileSystem& file_system, const std::filesystem::path& path, Manifest manifest)
    : path_(path), manifest_(std::move(manifest)) {
  rethrow_as_checkpoint_error(path, [&] {
    check_directory_name(path, manifest_.step);
    file_ = open_regular(file_system, path, kStateFile);
    const int64_t size_bytes = file_.size_bytes();
    if (size_bytes != manifest_.file_bytes) {
      throw FaultError(
          fmt::format("{} has {} bytes, but the manifest gives {}", kStateFile, size_bytes, manifest_.file_bytes));
    }
    ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);  // a failure is harmless
  });
}

void CheckpointReader::verify_tiles(int rank, int rank_count, Ledger* ledger,
                                    const std::function<void(int64_t)>& progress) {
  const auto tiles = static_cast<int64_t>(manifest_.tile_crcs.size());
  const int64_t first = tiles * rank / rank_count, last = tiles * (rank + 1) / rank_count;
  std::vector<FileRange> ranges;
  for (int64_t tile = first; tile < last; ++tile)
    ranges.push_back({tile * kTileBytes, std::min(kTileBytes, manifest_.file_bytes - tile * kTileBytes)});
  uint32_t crc = 0;
  int64_t done = 0;
  const auto consume = [&](size_t index, std::span<const std::byte> bytes, int64_t) {
    crc = crc32c(bytes, crc);
    done += static_cast<int64_t>(bytes.size());
    if (done < ranges[index].count) return;
    const int64_t tile = first + static_cast<int64_t>(index);
    if (crc != manifest_.tile_crcs[static_cast<size_t>(tile)]) throw_corrupt_tile(tile);
    if (progress) progress(done);
    crc = 0, done = 0;
  };
  read_direct(ranges, consume, ledger);
}

void CheckpointReader::read_direct(std::span<const FileRange> ranges, const ConsumeChunk& consume, Ledger* ledger) {
  rethrow_as_checkpoint_error(path_, [&] {
    // Small files are usually still in the page cache, which is faster than direct I/O.
    bool use_direct = manifest_.file_bytes >= kMinDirectBytes;
    const auto read = [&](std::span<std::byte> to, const FileRange& from) {
      const bool direct = use_direct && !from.through_page_cache;
      if (direct != file_.direct()) file_.set_direct(direct);
      file_.read(to, from.begin);
      if (direct && !file_.direct()) use_direct = false;  // the file system has rejected direct I/O
    };
    read_ahead(ranges, read, consume, ledger);
    file_.set_direct(false);
  });
}

void CheckpointReader::check_tiles(const std::vector<uint32_t>& crcs) const {
  for (size_t tile = 0; tile < crcs.size(); ++tile) {
    if (crcs[tile] != manifest_.tile_crcs[tile]) throw_corrupt_tile(static_cast<int64_t>(tile));
  }
}

void CheckpointReader::throw_corrupt_tile(int64_t tile) const {
  const int64_t begin = tile * kTileBytes, end = begin + kTileBytes;
  std::string names;
  int count = 0;
  for (const TensorEntry& tensor : manifest_.tensors) {
    if (tensor.size_bytes == 0 || tensor.file_offset >= end || tensor.file_offset + tensor.size_bytes <= begin)
      continue;
    if (++count <= 3) names += (names.empty() ? "" : ", ") + printable(tensor.path);
  }
  if (count > 3) names += fmt::format(" and {} more", count - 3);
  throw CheckpointError(
      fmt::format("checkpoint {} is damaged: the checksum of bytes {} to {} of {} does not match (these bytes hold {})",
                  path_.string(), begin, std::min(end, manifest_.file_bytes) - 1, kStateFile,
                  names.empty() ? "HDF5 metadata" : names));
}

void CheckpointReader::verify_structure() const {
  if (manifest_.hdf5_version != linked_hdf5_version()) return;
  rethrow_as_checkpoint_error(path_, [&] {
    std::vector<TensorEntry> tensors = manifest_.tensors;
    const FileStructure expected = make_structure(tensors, manifest_.step, manifest_.scalars);
    if (tensors != manifest_.tensors || expected.file_bytes != manifest_.file_bytes) {
      throw FaultError("the tensor offsets in its manifest are not those that a save assigns");
    }
    for (const FileGap& gap : expected.gaps) {
      std::string bytes(gap.bytes.size(), '\0');
      file_.read(std::as_writable_bytes(std::span(bytes)), gap.offset);
      if (bytes != gap.bytes)
        throw FaultError(fmt::format("the HDF5 metadata in {} does not match the manifest", kStateFile));
    }
  });
}

void CheckpointReader::read(std::span<std::byte> to, int64_t offset) const {
  rethrow_as_checkpoint_error(path_, [&] { file_.read(to, offset); });
}

}  // namespace aliquot
