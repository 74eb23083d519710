#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>

#include "checkpoint/checkpoint_error.h"
#include "checkpoint/crc32c.h"
#include "checkpoint/io_lane.h"
#include "checkpoint/structure.h"

namespace aliquot {
namespace {

/// What the system refuses while a checkpoint is read is a defect of the checkpoint.
template <typename Call>
auto as_checkpoint_error(const std::filesystem::path& path, Call&& call) {
  try {
    return call();
  } catch (const FaultError& error) {
    throw CheckpointError(fmt::format("checkpoint {} cannot be used: {}", path.string(), error.what()));
  }
}

File open_regular(FileSystem& file_system, const std::filesystem::path& path, const char* name) {
  File file = Directory::open(file_system, path).open_for_reading(name);
  if (!file.is_regular()) throw FaultError(fmt::format("{} is no regular file", name));
  return file;
}

}  // namespace

std::string read_manifest_text(FileSystem& file_system, const std::filesystem::path& path) {
  return as_checkpoint_error(path, [&] {
    const File file = open_regular(file_system, path, kManifestFile);
    const int64_t size_bytes = file.size_bytes();
    if (size_bytes > kManifestBytesLimit)
      throw FaultError(fmt::format("{} is larger than any manifest", kManifestFile));
    std::string text(static_cast<size_t>(size_bytes), '\0');
    file.read(std::as_writable_bytes(std::span(text)), 0);
    return text;
  });
}

CheckpointReader::CheckpointReader(FileSystem& file_system, const std::filesystem::path& path, Manifest manifest)
    : path_(path), manifest_(std::move(manifest)) {
  as_checkpoint_error(path, [&] {
    file_ = open_regular(file_system, path, kStateFile);
    const int64_t size_bytes = file_.size_bytes();
    if (size_bytes != manifest_.file_bytes) {
      throw FaultError(
          fmt::format("{} has {} bytes and the manifest says {}", kStateFile, size_bytes, manifest_.file_bytes));
    }
    ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);  // advice alone: it may fail
  });
}

void CheckpointReader::verify_tiles(int rank, int rank_count, Ledger* ledger,
                                    const std::function<void(int64_t)>& progress) const {
  const auto tiles = static_cast<int64_t>(manifest_.tile_crcs.size());
  const int64_t first = tiles * rank / rank_count, last = tiles * (rank + 1) / rank_count;
  const auto bytes_of = [&](int64_t tile) { return std::min(kTileBytes, manifest_.file_bytes - tile * kTileBytes); };
  const StagingRing ring(ledger);
  IoLane lane;
  const auto start = [&](int64_t tile) {
    if (tile >= last) return;
    lane.submit([this, bytes = ring.chunk(tile).first(static_cast<size_t>(bytes_of(tile))), tile] {
      file_.read(bytes, tile * kTileBytes);
    });
  };
  as_checkpoint_error(path_, [&] {
    for (int64_t tile = first; tile < first + StagingRing::kChunks; ++tile) start(tile);
    for (int64_t tile = first; tile < last; ++tile) {
      lane.wait(tile - first + 1);
      const auto bytes = ring.chunk(tile).first(static_cast<size_t>(bytes_of(tile)));
      if (crc32c(bytes) != manifest_.tile_crcs[static_cast<size_t>(tile)]) fail_tile(tile);
      if (progress) progress(static_cast<int64_t>(bytes.size()));
      start(tile + StagingRing::kChunks);
    }
  });
}

void CheckpointReader::check_tiles(const std::vector<uint32_t>& crcs) const {
  for (size_t tile = 0; tile < crcs.size(); ++tile) {
    if (crcs[tile] != manifest_.tile_crcs[tile]) fail_tile(static_cast<int64_t>(tile));
  }
}

void CheckpointReader::fail_tile(int64_t tile) const {
  const int64_t begin = tile * kTileBytes, end = begin + kTileBytes;
  std::string names;
  int count = 0;
  for (const TensorEntry& tensor : manifest_.tensors) {
    if (tensor.size_bytes == 0 || tensor.file_offset >= end || tensor.file_offset + tensor.size_bytes <= begin)
      continue;
    if (++count <= 3) names += (names.empty() ? "" : ", ") + printable(tensor.path);
  }
  if (count > 3) names += fmt::format(" and {} more", count - 3);
  throw CheckpointError(fmt::format(
      "checkpoint {} is damaged: the checksum of bytes {} to {} of {} does not match (there lie {})", path_.string(),
      begin, std::min(end, manifest_.file_bytes) - 1, kStateFile, names.empty() ? "HDF5's own" : names));
}

void CheckpointReader::verify_structure() const {
  if (manifest_.hdf5_version != structure_writer()) return;
  as_checkpoint_error(path_, [&] {
    std::vector<TensorEntry> tensors = manifest_.tensors;
    const FileStructure expected = make_structure(tensors, manifest_.step, manifest_.scalars);
    if (tensors != manifest_.tensors || expected.file_bytes != manifest_.file_bytes) {
      throw FaultError("its manifest places tensors where no save would");
    }
    for (const FileGap& gap : expected.gaps) {
      std::string bytes(gap.bytes.size(), '\0');
      file_.read(std::as_writable_bytes(std::span(bytes)), gap.offset);
      if (bytes != gap.bytes)
        throw FaultError(fmt::format("the structure of {} is not what its manifest describes", kStateFile));
    }
  });
}

void CheckpointReader::read(std::span<std::byte> to, int64_t offset) const {
  as_checkpoint_error(path_, [&] { file_.read(to, offset); });
}

}  // namespace aliquot
