#include "checkpoint/load.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/catalogue.h"
#include "checkpoint/convert.h"
#include "checkpoint/converting_tensor.h"
#include "checkpoint/find.h"
#include "checkpoint/io_lane.h"
#include "checkpoint/one_pass.h"
#include "checkpoint/pieces.h"
#include "checkpoint/reader.h"
#include "checkpoint/save.h"
#include "checkpoint/together.h"

namespace aliquot {
namespace {

struct Comparison {
  std::vector<Match> matches;
  std::vector<std::string> missing, extra, different, converted;
  std::deque<ConvertingTensor> converting;  // that matches point to
};

/// The tensor that takes what the checkpoint has: the state's own, or one that converts for it.
Match match(const StateTensor& want, const TensorEntry& have, bool allow_rounding, Comparison& result) {
  const bool same = want.shape == have.shape && want.dtype == have.dtype;
  if (same) return {&want, &have};
  const bool fits = want.shape == have.shape && converts(want.dtype, have.dtype) &&
                    (allow_rounding || converts_exactly(want.dtype, have.dtype));
  if (!fits) {
    result.different.push_back(fmt::format("{} (there {}, here {})", want.path, describe(have.dtype, have.shape),
                                           describe(want.dtype, want.shape)));
    return {&want, &have};
  }
  result.converted.push_back(fmt::format("{} (there {}, here {})", want.path, name(have.dtype), name(want.dtype)));
  return {&result.converting.emplace_back(want, have.dtype).tensor(), &have};
}

void compare(const Catalogue& wanted, const Manifest& manifest, bool allow_rounding, Comparison& result) {
  size_t w = 0, m = 0;
  while (w < wanted.tensors.size() || m < manifest.tensors.size()) {
    const TensorEntry* want = w < wanted.tensors.size() ? &wanted.tensors[w] : nullptr;
    const TensorEntry* have = m < manifest.tensors.size() ? &manifest.tensors[m] : nullptr;
    if (have == nullptr || (want != nullptr && want->path < have->path)) {
      result.missing.push_back(want->path);
      result.matches.push_back({wanted.own[w++], nullptr});
    } else if (want == nullptr || have->path < want->path) {
      result.extra.push_back(have->path);
      ++m;
    } else {
      result.matches.push_back(match(*wanted.own[w++], *have, allow_rounding, result));
      ++m;
    }
  }
}

std::string listed(std::string_view title, const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + printable(path);
  return text.empty() ? text : fmt::format("; {}: {}", title, text);
}

void refuse_differences(const Comparison& found, const std::filesystem::path& path, const LoadOptions& options) {
  std::string text = listed("of another shape or dtype", found.different);
  if (!options.allow_missing) text += listed("missing there", found.missing);
  if (!options.allow_extra) text += listed("only there", found.extra);
  if (!text.empty()) throw UsageError(fmt::format("checkpoint {} does not fit this state{}", path.string(), text));
}

/// Reads pieces: straight into plain memory, through the staging ring into any other, the next chunk on its way
/// meanwhile.
class PieceReader {
 public:
  PieceReader(const CheckpointReader& reader, Ledger* ledger) : reader_(reader), ring_(ledger) {}

  void read(const Match& match) {
    for (const StatePiece& piece : match.tensor->pieces) {
      if (piece.count > 0) read_piece(match, piece);
    }
  }

 private:
  void read_piece(const Match& match, const StatePiece& piece) {
    const int64_t width = element_bytes(match.tensor->dtype), total = piece.count * width;
    const int64_t offset = match.entry == nullptr ? -1 : match.entry->file_offset + piece.offset * width;
    if (offset >= 0 && match.tensor->access == nullptr) {
      return reader_.read({piece.bytes, static_cast<size_t>(total)}, offset);
    }
    const int64_t chunks = (total + kStagingChunkBytes - 1) / kStagingChunkBytes;
    const auto part = [&](int64_t chunk) {
      return ring_.chunk(chunk).first(
          static_cast<size_t>(std::min(kStagingChunkBytes, total - chunk * kStagingChunkBytes)));
    };
    std::vector<IoLane::Ticket> tickets;
    const auto start = [&](int64_t chunk) {
      if (chunk >= chunks) return;
      tickets.push_back(lane_.submit([this, to = part(chunk), from = offset, chunk] {
        if (from < 0) {
          std::fill(to.begin(), to.end(), std::byte{0});
        } else {
          reader_.read(to, from + chunk * kStagingChunkBytes);
        }
      }));
    };
    for (int64_t chunk = 0; chunk < StagingRing::kChunks; ++chunk) start(chunk);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      lane_.wait(tickets[static_cast<size_t>(chunk)]);
      write_piece(*match.tensor, piece, chunk * (kStagingChunkBytes / width), part(chunk));
      start(chunk + StagingRing::kChunks);
    }
  }

  const CheckpointReader& reader_;
  StagingRing ring_;
  IoLane lane_;  // last, so that it has come to rest before the ring goes
};

void agree_on_path(Communicator& communicator, const std::filesystem::path& path) {
  const auto paths = communicator.gather_objects(path.string());
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    if (paths[rank] == paths[0]) continue;
    throw UsageError(fmt::format("ranks would load different checkpoints: rank {} asks for {} and rank 0 for {}", rank,
                                 printable(paths[rank]), printable(paths[0])));
  }
}

}  // namespace

LoadReport load(State& state, Communicator& communicator, const std::filesystem::path& path,
                const LoadOptions& options) {
  const auto begun = std::chrono::steady_clock::now();
  agree_on_path(communicator, path);
  FileSystem& file_system = options.file_system != nullptr ? *options.file_system : FileSystem::system();
  // One rank reads the manifest, so that all act on the same one.
  const std::string text = from_rank_0(communicator, [&] { return read_manifest_text(file_system, path); });
  std::optional<CheckpointReader> reader;
  Comparison comparison;
  all_or_none(communicator, [&] {
    reader.emplace(file_system, path, parse_manifest(text, (path / kManifestFile).string()));
    compare(own_catalogue(state), reader->manifest(), options.allow_rounding, comparison);
    refuse_differences(comparison, path, options);
  });
  if (options.state_is_fresh) {
    OnePassLoad(*reader, comparison.matches, communicator).run(options.ledger);
    std::erase_if(comparison.matches, [](const Match& match) { return match.entry != nullptr; });
  } else {
    all_or_none(communicator, [&] {
      reader->verify_tiles(communicator.rank(), communicator.rank_count(), options.ledger);
      if (communicator.rank() == 0) reader->verify_structure();
    });
  }
  all_or_none(communicator, [&] {
    PieceReader pieces(*reader, options.ledger);
    for (const Match& match : comparison.matches) pieces.read(match);
  });
  const Manifest& manifest = reader->manifest();
  state.step = manifest.step;
  state.scalars = manifest.scalars;
  LoadReport report;
  report.path = path;
  report.missing = std::move(comparison.missing);
  report.extra = std::move(comparison.extra);
  report.converted = std::move(comparison.converted);
  report.file_bytes = manifest.file_bytes;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return report;
}

std::optional<LoadReport> load_newest(State& state, Communicator& communicator, const std::filesystem::path& directory,
                                      const LoadOptions& options) {
  const std::string told = from_rank_0(communicator, [&] {
    std::vector<int64_t> steps;
    for (const FoundCheckpoint& found : list_checkpoints(directory)) steps.push_back(found.step);
    return to_bytes<int64_t>(steps);
  });
  auto steps = from_bytes<int64_t>(told);
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
  throw CheckpointError(
      fmt::format("no checkpoint in {} can be used: {}", directory.string(), fmt::join(refused, "; ")));
}

}  // namespace aliquot
