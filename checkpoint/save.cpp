#include "checkpoint/save.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <random>
#include <unistd.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/commit.h"
#include "checkpoint/file/file_image.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/file/manifest.h"
#include "checkpoint/file/page_writer.h"
#include "checkpoint/file/tile_parts.h"
#include "kernels/system/fault_point.h"
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

/// The file on this rank, and what is needed to write to it.
struct OpenFile {
  OpenFile(const FileImage& image, File opened, const SaveOptions& options)
      : file(std::move(opened)),
        ring(options.staging != nullptr ? *options.staging : own_ring.emplace(options.ledger)),
        writer(image, file, ring) {}

  File file;
  std::optional<StagingRing> own_ring;
  const StagingRing& ring;
  PageWriter writer;
};

/// Writes the pages of all ranks. `open` opens the file on this rank. Returns the parts of each rank, serialized with
/// to_bytes(). Collective.
std::vector<std::string> write_pages(FileImage& image, Communicator& communicator, const SaveOptions& options,
                                     const std::function<File()>& open, bool& is_direct) {
  std::optional<OpenFile> out;
  std::vector<PageRun> pending;  // windows that can be written
  // An error must not interrupt the sequence of collectives, so ranks write only in the steps of collectives.
  const auto write_pending = [&] {
    if (!out) {
      out.emplace(image, open(), options);
      out->writer.write_runs();
    }
    for (const PageRun& window : pending) out->writer.write_window(window);
    pending.clear();
  };
  for (const PageRun& window : image.layout().plan().runs) {
    if (window.rank != PageLayout::kManyRanks || !image.layout().needs_plan(window, communicator.rank())) continue;
    const PagePlan plan = image.layout().plan_window(window);
    image.exchange(plan.fragments, communicator, write_pending);
    pending.push_back(window);
  }
  return gather_or_throw(communicator, [&] {
    write_pending();
    const auto parts = out->writer.finish();
    is_direct = out->writer.is_direct();
    out->file.sync();
    out->file.close();
    return to_bytes<TilePart>(parts);
  });
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
  image.exchange(image.layout().plan().fragments, communicator);
  const std::string id = broadcast_from_rank_0(communicator, make_attempt_id);

  const InjectedFault* fault = injected_fault(communicator.rank(), state.step, "save");
  FileSystem& file_system = file_system_of(options, fault);
  CheckpointCommit commit(file_system, directory, state.step, id);
  SaveReport report{directory / checkpoint_name(state.step), structure.file_bytes, 0, false, {}};
  try {
    const bool is_rank_0 = communicator.rank() == 0;
    run_on_all_or_throw(communicator, [&] {
      fault_point(communicator.rank(), "begin of a save");
      if (is_rank_0) commit.prepare(structure.file_bytes);
    });
    const auto open = [&] {
      File file = commit.open(options.direct_io);
      if (fault != nullptr) inject_fault(*fault, report.path.string());
      fault_point(communicator.rank(), "write of a save");
      return file;
    };
    const auto parts = write_pages(image, communicator, options, open, report.direct_io);
    run_on_all_or_throw(communicator, [&] {
      fault_point(communicator.rank(), "commit of a save");
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
