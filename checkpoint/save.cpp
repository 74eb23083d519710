#include "checkpoint/save.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <optional>
#include <random>
#include <unistd.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/commit.h"
#include "checkpoint/file/file_image.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/file/manifest.h"
#include "checkpoint/file/tile_parts.h"
#include "checkpoint/hash/crc32c.h"
#include "kernels/system/file.h"
#include "kernels/system/file_system.h"
#include "kernels/system/injected_fault.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

static_assert(StagingRing::kChunks * StagingRing::kChunkBytes == kStagingBytes);

/// Behaves like a full disk, for fault injection: writes and reservations fail with ENOSPC.
class FullDisk final : public FileSystem {
 public:
  ssize_t pwrite(int, const void*, size_t, off_t) override { return refuse(); }
  int allocate(int, off_t) override { return refuse(); }

 private:
  static int refuse() {
    errno = ENOSPC;
    return -1;
  }
};

/// Rank 0 creates the HDF5 structure; all ranks receive the file size and the tensor offsets.
FileStructure agree_on_structure(const State& state, Catalogue& catalogue, Communicator& communicator) {
  FileStructure structure;
  const std::string encoded_offsets = broadcast_from_rank_0(communicator, [&] {
    structure = make_structure(catalogue.tensors, state.step, state.scalars);
    std::vector<int64_t> offsets{structure.file_bytes};
    for (const TensorEntry& tensor : catalogue.tensors) offsets.push_back(tensor.file_offset);
    return to_bytes<int64_t>(offsets);
  });
  const auto offsets = from_bytes<int64_t>(encoded_offsets);
  structure.file_bytes = offsets.at(0);
  for (size_t i = 0; i < catalogue.tensors.size(); ++i) catalogue.tensors[i].file_offset = offsets.at(i + 1);
  return structure;
}

/// Writes the pages of this rank: copies each part of a tile into staging memory, hashes it there, and submits the
/// write to an IoLane.
class PageWriter {
 public:
  PageWriter(const FileImage& image, File& file, const StagingRing& ring) : image_(image), file_(file), ring_(ring) {}

  std::vector<TilePart> write() {
    for (const PageRun& run : image_.own_runs()) {
      for (const TilePart& part : split_at_tiles(run.begin, run.end)) parts_.push_back(write_part(part));
    }
    lane_.wait(submitted_);
    return std::move(parts_);
  }

 private:
  /// Returns the part with its checksum.
  TilePart write_part(TilePart part) {
    for (int64_t done = 0; done < part.count; done += StagingRing::kChunkBytes, ++submitted_) {
      if (submitted_ >= StagingRing::kChunks) lane_.wait(submitted_ - StagingRing::kChunks + 1);
      const int64_t begin = part.begin + done, count = std::min(StagingRing::kChunkBytes, part.count - done);
      const auto bytes = ring_.chunk(submitted_).first(static_cast<size_t>(count));
      part.crc = fill(bytes, begin, part.crc);
      lane_.submit([this, bytes, begin] { file_.write(bytes, begin); });
    }
    return part;
  }

  /// Copies and hashes in small parts, so that each part is still in the cache when it is hashed.
  uint32_t fill(std::span<std::byte> bytes, int64_t begin, uint32_t crc) const {
    constexpr size_t kPartBytes = 96 << 10;
    for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
      const auto part = bytes.subspan(at, std::min(kPartBytes, bytes.size() - at));
      image_.read(part, begin + static_cast<int64_t>(at));
      crc = crc32c(part, crc);
    }
    return crc;
  }

  const FileImage& image_;
  File& file_;
  const StagingRing& ring_;
  std::vector<TilePart> parts_;
  int64_t submitted_ = 0;  // number of submitted writes, which is also the ticket of the last one
  IoLane lane_;            // last member: its thread ends before the members that it uses are destroyed
};

std::string make_attempt_id() {
  static std::atomic<uint64_t> count{0};
  std::random_device random;
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return fmt::format("{:016x}", now ^ (uint64_t{random()} << 32) ^ (static_cast<uint64_t>(::getpid()) << 16) ^ ++count);
}

FileSystem& file_system_of(const SaveOptions& options, const InjectedFault* fault) {
  static FullDisk full_disk;
  if (fault != nullptr && fault->kind == FaultKind::kFullDisk) return full_disk;
  return options.file_system != nullptr ? *options.file_system : FileSystem::system();
}

Manifest make_manifest(const State& state, const Catalogue& catalogue, const SaveOptions& options, int rank_count) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.hdf5_version = linked_hdf5_version();
  manifest.tensors = catalogue.tensors;
  manifest.scalars = state.scalars;
  manifest.written_by = options.written_by;
  manifest.written_by["ranks"] = int64_t{rank_count};
  return manifest;
}

}  // namespace

SaveReport save(const State& state, Communicator& communicator, const std::filesystem::path& directory,
                const SaveOptions& options) {
  const ScopedCollectivePurpose purpose("save", state.step);
  const auto begun = std::chrono::steady_clock::now();
  if (options.keep_count < 0)
    throw UsageError(fmt::format("invalid SaveOptions::keep_count {}: expected 1 or more, or 0 to keep all checkpoints",
                                 options.keep_count));
  Catalogue catalogue = agree_on_catalogue(state, communicator, directory);
  const FileStructure structure = agree_on_structure(state, catalogue, communicator);
  FileImage image(catalogue, structure.file_bytes, structure.gaps, communicator.rank());
  image.exchange_fragments(communicator);
  const std::string id = broadcast_from_rank_0(communicator, make_attempt_id);

  const InjectedFault* fault = injected_fault(communicator.rank(), state.step, "save");
  FileSystem& file_system = file_system_of(options, fault);
  CheckpointCommit commit(file_system, directory, state.step, id);
  SaveReport report{directory / checkpoint_name(state.step), structure.file_bytes, 0, false, {}};
  try {
    const bool is_rank_0 = communicator.rank() == 0;
    run_on_all_or_throw(communicator, [&] {
      if (is_rank_0) commit.prepare(structure.file_bytes);
    });
    const auto parts = gather_or_throw(communicator, [&] {
      File file = commit.open(options.direct_io);
      if (fault != nullptr) inject_fault(*fault, report.path.string());
      std::optional<StagingRing> own_staging;
      const StagingRing& staging = options.staging != nullptr ? *options.staging : own_staging.emplace(options.ledger);
      const auto written = PageWriter(image, file, staging).write();
      report.direct_io = file.direct();
      file.sync();
      file.close();
      return to_bytes<TilePart>(written);
    });
    run_on_all_or_throw(communicator, [&] {
      if (!is_rank_0) return;
      Manifest manifest = make_manifest(state, catalogue, options, communicator.rank_count());
      manifest.attempt = id;
      manifest.file_bytes = structure.file_bytes;
      manifest.tile_crcs = combine_tile_crcs(parts, structure.file_bytes);
      const std::string warning = commit.publish(manifest_text(manifest));
      if (options.keep_count > 0)
        report.warnings = prune_checkpoints(directory, options.keep_count, state.step, &file_system);
      if (!warning.empty()) report.warnings.push_back(warning);
    });
  } catch (const CommunicationError&) {
    throw;  // the ranks cannot communicate; sweep_leftovers() removes the partial save at the next start
  } catch (const Error&) {
    if (communicator.rank() == 0) commit.abandon();
    communicator.gather_objects({});  // a barrier: no rank throws before rank 0 has removed the save
    throw;
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return report;
}

}  // namespace aliquot
