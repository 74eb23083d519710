#include "checkpoint/single_pass_loader.h"

#include <algorithm>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/hash/crc32c.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

struct Range {
  int64_t begin, end;
};

struct WantedRange {
  Range range;
  int32_t rank;
};

/// Assigns each byte to the rank that reads and verifies it: the first rank that needs it. Bytes that no rank needs are
/// assigned tile by tile, round-robin.
std::vector<FileExtent> assign_verifiers(const std::vector<std::string>& gathered, int64_t file_bytes) {
  std::vector<WantedRange> wanted;
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    for (const Range& range : from_bytes<Range>(gathered[rank])) wanted.push_back({range, static_cast<int32_t>(rank)});
  }
  std::sort(wanted.begin(), wanted.end(), [](const WantedRange& a, const WantedRange& b) {
    return std::pair(a.range.begin, a.rank) < std::pair(b.range.begin, b.rank);
  });
  std::vector<FileExtent> extents;
  int64_t end = 0;
  const auto fill_to = [&](int64_t next) {
    for (const TilePart& part : split_at_tiles(end, next)) {
      const int64_t rank = part.begin / kTileBytes % static_cast<int64_t>(gathered.size());
      extents.push_back({part.begin, part.begin + part.count, static_cast<int32_t>(rank), 0});
    }
    end = std::max(end, next);
  };
  for (const auto& [range, rank] : wanted) {
    fill_to(range.begin);
    if (range.end > end) extents.push_back({end, range.end, rank, 0});
    end = std::max(end, range.end);
  }
  fill_to(file_bytes);
  return extents;
}

}  // namespace

SinglePassLoader::SinglePassLoader(CheckpointReader& reader, const std::vector<TensorMatch>& matches,
                                   Communicator& communicator)
    : reader_(reader), communicator_(communicator) {
  for (const TensorMatch& match : matches) {
    if (match.entry == nullptr) continue;
    const int64_t width = element_bytes(match.tensor->dtype);
    for (const StatePiece& piece : match.tensor->pieces) {
      const int64_t begin = match.entry->file_offset + piece.offset * width;
      if (piece.count > 0) targets_.push_back({begin, begin + piece.count * width, match.tensor, &piece, 0, {}});
    }
  }
  std::sort(targets_.begin(), targets_.end(), [](const Target& a, const Target& b) { return a.begin < b.begin; });
}

void SinglePassLoader::run(Ledger* ledger) {
  auto parts = own_parts(plan());
  const auto gathered = gather_or_throw(communicator_, [&] {
    read_parts(parts, ledger);
    return to_bytes<TilePart>(parts);
  });
  run_on_all_or_throw(communicator_, [&] {
    reader_.check_tiles(combine_tile_crcs(gathered, reader_.manifest().file_bytes));
    if (communicator_.rank() == 0) reader_.verify_structure();
  });
  run_on_all_or_throw(communicator_, [&] { read_remaining(ledger); });
}

PagePlan SinglePassLoader::plan() const {
  std::vector<Range> ranges;
  for (const Target& target : targets_) ranges.push_back({target.begin, target.end});
  const auto gathered = communicator_.gather_objects(to_bytes<Range>(ranges));
  return plan_pages(assign_verifiers(gathered, reader_.manifest().file_bytes), kPageBytes);
}

std::vector<TilePart> SinglePassLoader::own_parts(const PagePlan& plan) const {
  std::vector<TilePart> parts;
  for (const PageRun& run : plan.runs) {
    if (run.rank != communicator_.rank()) continue;
    const auto cut = split_at_tiles(run.begin, run.end);
    parts.insert(parts.end(), cut.begin(), cut.end());
  }
  return parts;
}

void SinglePassLoader::read_parts(std::vector<TilePart>& parts, Ledger* ledger) {
  std::vector<FileRange> ranges;
  for (const TilePart& part : parts) ranges.push_back({part.begin, part.count});
  const auto consume = [&](size_t index, std::span<const std::byte> bytes, int64_t offset) {
    parts[index].crc = crc32c(bytes, parts[index].crc);
    scatter(bytes, offset);
  };
  reader_.read_direct(ranges, consume, ledger);
  for (Target& target : targets_) {
    if (target.done < target.piece->count) target.unread.emplace_back(target.done, target.piece->count);
  }
}

void SinglePassLoader::scatter(std::span<const std::byte> bytes, int64_t offset) {
  const int64_t end = offset + static_cast<int64_t>(bytes.size());
  while (first_target_ < targets_.size() && targets_[first_target_].end <= offset) ++first_target_;
  for (size_t i = first_target_; i < targets_.size() && targets_[i].begin < end; ++i) {
    Target& target = targets_[i];
    const int64_t width = element_bytes(target.tensor->dtype);
    // Copies only complete elements. read_remaining() reads the elements that the chunk splits and those that other
    // ranks verify.
    const int64_t first = (std::max(offset, target.begin) - target.begin + width - 1) / width;
    const int64_t last = (std::min(end, target.end) - target.begin) / width;
    if (first >= last) continue;
    const int64_t from = target.begin + first * width - offset;
    write_piece(*target.tensor, *target.piece, first,
                bytes.subspan(static_cast<size_t>(from), static_cast<size_t>((last - first) * width)));
    if (first > target.done) target.unread.emplace_back(target.done, first);
    target.done = last;
  }
}

void SinglePassLoader::read_remaining(Ledger* ledger) {
  const StagingRing ring(ledger);
  for (const Target& target : targets_) {
    const int64_t width = element_bytes(target.tensor->dtype);
    for (const auto& [begin, end] : target.unread) {
      for (int64_t first = begin; first < end; first += StagingRing::kChunkBytes / width) {
        const int64_t count = std::min(end - first, StagingRing::kChunkBytes / width);
        const auto bytes = ring.chunk(0).first(static_cast<size_t>(count * width));
        reader_.read(bytes, target.begin + first * width);
        write_piece(*target.tensor, *target.piece, first, bytes);
      }
    }
  }
}

}  // namespace aliquot
