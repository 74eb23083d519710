#include "checkpoint/load.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/reader.h"
#include "checkpoint/save.h"
#include "checkpoint/single_pass_loader.h"
#include "kernels/system/fault_point.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

/// Fills all pieces of `tensor`, which the checkpoint lacks, with zeros. Writes at most zeros.size() bytes at a time.
void fill_with_zeros(const StateTensor& tensor, std::span<const std::byte> zeros) {
  const int64_t width = element_bytes(tensor.dtype), most = static_cast<int64_t>(zeros.size()) / width;
  for (const StatePiece& piece : tensor.pieces) {
    for (int64_t first = 0; first < piece.count; first += most) {
      const int64_t count = std::min(most, piece.count - first);
      write_piece(tensor, piece, first, zeros.first(static_cast<size_t>(count * width)));
    }
  }
}

void zero_missing_tensors(const std::vector<TensorMatch>& matches, Ledger* ledger) {
  const StagingRing ring(ledger);
  const auto zeros = ring.chunk(0);
  std::fill(zeros.begin(), zeros.end(), std::byte{0});
  for (const TensorMatch& match : matches) {
    if (match.entry == nullptr) fill_with_zeros(*match.tensor, zeros);
  }
}

void convert_quantized(const CheckpointReader& reader, const std::vector<QuantizedConversion>& quantized_conversions,
                       Ledger* ledger) {
  QuantizedConverter converter(reader, ledger);
  for (const QuantizedConversion& each : quantized_conversions) converter.fill(each);
}

void agree_on_path(Communicator& communicator, const std::filesystem::path& path) {
  const auto paths = communicator.gather_objects(path.string());
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    if (paths[rank] == paths[0]) continue;
    throw UsageError(fmt::format("ranks would load different checkpoints: rank {} requests {}, and rank 0 requests {}",
                                 rank, printable(paths[rank]), printable(paths[0])));
  }
}

}  // namespace

LoadReport load(State& state, Communicator& communicator, const std::filesystem::path& path,
                const LoadOptions& options) {
  const ScopedCollectivePurpose purpose("load");
  const auto begun = std::chrono::steady_clock::now();
  agree_on_path(communicator, path);
  FileSystem& file_system = options.file_system != nullptr ? *options.file_system : FileSystem::system();
  // Only rank 0 reads the manifest, so that all ranks use the same one even if the file changes.
  const std::string text = broadcast_from_rank_0(communicator, [&] { return read_manifest_text(file_system, path); });
  std::optional<CheckpointReader> reader;
  LoadPlan plan;
  run_on_all_or_throw(communicator, [&] {
    fault_point(communicator.rank(), "begin of a load");
    reader.emplace(file_system, path, parse_manifest(text, (path / kManifestFile).string()));
    plan_load(local_catalogue(state), reader->manifest(), options, plan);
    throw_on_differences(plan, reader->manifest(), path, options);
  });
  if (!options.state_is_fresh) {
    run_on_all_or_throw(communicator, [&] {
      reader->verify_tiles(communicator.rank(), communicator.rank_count(), options.ledger);
      if (communicator.rank() == 0) reader->verify_structure();
    });
  }
  // The loader verifies each byte that it reads, so it detects a file that has changed since verify_tiles().
  SinglePassLoader(*reader, plan.matches, communicator).run(options.ledger);
  run_on_all_or_throw(communicator, [&] {
    fault_point(communicator.rank(), "end of a load");
    if (!plan.missing.empty()) zero_missing_tensors(plan.matches, options.ledger);
    if (!plan.quantized_conversions.empty()) convert_quantized(*reader, plan.quantized_conversions, options.ledger);
  });
  const Manifest& manifest = reader->manifest();
  state.step = manifest.step;
  state.scalars = manifest.scalars;
  LoadReport report;
  report.path = path;
  report.missing = std::move(plan.missing);
  report.extra = std::move(plan.extra);
  report.converted = std::move(plan.converted);
  report.file_bytes = manifest.file_bytes;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return report;
}

std::optional<LoadReport> load_newest(State& state, Communicator& communicator, const std::filesystem::path& directory,
                                      const LoadOptions& options) {
  const ScopedCollectivePurpose purpose("load the newest checkpoint");
  const std::string encoded_steps = broadcast_from_rank_0(communicator, [&] {
    if (std::filesystem::exists(directory) && !std::filesystem::is_directory(directory))
      throw UsageError(fmt::format("{} is not a directory: expected a directory of checkpoints", directory.string()));
    if (std::filesystem::exists(directory / kManifestFile) && std::filesystem::exists(directory / kStateFile))
      throw UsageError(
          fmt::format("{} is a checkpoint: expected the directory that contains checkpoints", directory.string()));
    std::vector<int64_t> steps;
    for (const FoundCheckpoint& found : list_checkpoints(directory)) steps.push_back(found.step);
    return to_bytes<int64_t>(steps);
  });
  auto steps = from_bytes<int64_t>(encoded_steps);
  if (steps.empty()) return std::nullopt;
  std::vector<std::string> refused;
  for (; !steps.empty(); steps.pop_back()) {
    try {
      LoadReport report = load(state, communicator, directory / checkpoint_name(steps.back()), options);
      report.refused = std::move(refused);
      return report;
    } catch (const CheckpointError& error) {
      refused.emplace_back(error.what());
    }
  }
  throw CheckpointError(fmt::format("no checkpoint in {} is valid: {}", directory.string(), fmt::join(refused, "; ")));
}

}  // namespace aliquot
