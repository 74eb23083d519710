#include "checkpoint/single_pass_loader.h"

#include <algorithm>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/io_lane.h"
#include "checkpoint/hash/crc32c.h"
#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

/// Assigns each byte to the rank that reads and verifies it: the first rank that needs it. Bytes that no rank needs are
/// assigned tile by tile, round-robin.
Bands assign_verifiers(const std::vector<std::string>& gathered, int64_t file_bytes) {
  std::vector<StridedExtent> wanted;
  for (const std::string& own : gathered) {
    const auto extents = from_bytes<StridedExtent>(own);
    wanted.insert(wanted.end(), extents.begin(), extents.end());
  }
  Bands verifiers(wanted);
  verifiers.complete(file_bytes, [&](int64_t begin, int64_t end) {
    std::vector<FileExtent> extents;
    for (const TilePart& part : split_at_tiles(begin, end)) {
      const int64_t rank = part.begin / kTileBytes % static_cast<int64_t>(gathered.size());
      extents.push_back({part.begin, part.begin + part.count, static_cast<int32_t>(rank), 0});
    }
    return extents;
  });
  return verifiers;
}

}  // namespace

SinglePassLoader::SinglePassLoader(CheckpointReader& reader, const std::vector<TensorMatch>& matches,
                                   Communicator& communicator)
    : reader_(reader), communicator_(communicator) {
  for (const TensorMatch& match : matches) {
    if (match.entry == nullptr) continue;
    const int64_t width = element_bytes(match.tensor->dtype), begin = match.entry->file_offset;
    for (const StatePiece& piece : match.tensor->pieces) {
      if (piece.count > 0)
        targets_.push_back(
            {begin + piece.offset * width, begin + end_of(piece) * width, begin, match.tensor, &piece, 0, {}});
    }
  }
  std::sort(targets_.begin(), targets_.end(), [](const Target& a, const Target& b) { return a.begin < b.begin; });
}

void SinglePassLoader::run(Ledger* ledger) {
  OwnPages pages = own_pages(layout());
  const auto gathered = gather_or_throw(communicator_, [&] {
    read_pages(pages, ledger);
    return to_bytes<TilePart>(pages.parts);
  });
  run_on_all_or_throw(communicator_, [&] {
    reader_.check_tiles(combine_tile_crcs(gathered, reader_.manifest().file_bytes));
    if (communicator_.rank() == 0) reader_.verify_structure();
  });
  run_on_all_or_throw(communicator_, [&] { read_remaining(ledger); });
}

PageLayout SinglePassLoader::layout() const {
  std::vector<StridedExtent> wanted;
  for (const Target& target : targets_)
    wanted.push_back(
        extent_of(*target.piece, target.tensor_begin, element_bytes(target.tensor->dtype), communicator_.rank(), 0));
  const auto gathered = communicator_.gather_objects(to_bytes<StridedExtent>(wanted));
  return {assign_verifiers(gathered, reader_.manifest().file_bytes), reader_.manifest().file_bytes};
}

SinglePassLoader::OwnPages SinglePassLoader::own_pages(const PageLayout& layout) const {
  OwnPages pages;
  for (const PageRun& run : layout.plan().runs) {
    if (run.rank == PageLayout::kManyRanks) add_window(layout, run, pages);
    if (run.rank != communicator_.rank()) continue;
    for (const TilePart& part : split_at_tiles(run.begin, run.end)) {
      pages.ranges.push_back({part.begin, part.count});
      pages.part.push_back(pages.parts.size());
      pages.parts.push_back(part);
      pages.parts.back().missing_bytes = part.count;
    }
  }
  return pages;
}

/// Adds this rank's pages in a window.
void SinglePassLoader::add_window(const PageLayout& layout, const PageRun& window, OwnPages& pages) const {
  if (!layout.needs_plan(window, communicator_.rank())) return;
  const TilePart shared = layout.shared_part(window);
  for (const PageRun& run : layout.plan_window(window).runs) {
    if (run.rank != communicator_.rank()) continue;
    if (pages.parts.empty() || pages.parts.back().begin != shared.begin) pages.parts.push_back(shared);
    pages.ranges.push_back({run.begin, run.end - run.begin, true});
    pages.part.push_back(pages.parts.size() - 1);
  }
}

void SinglePassLoader::read_pages(OwnPages& pages, Ledger* ledger) {
  uint32_t crc = 0;  // of the bytes of the current range
  int64_t done = 0;
  const auto consume = [&](size_t index, std::span<const std::byte> bytes, int64_t offset) {
    crc = crc32c(bytes, crc);
    done += std::ssize(bytes);
    scatter(bytes, offset);
    const FileRange& range = pages.ranges[index];
    if (done < range.count) return;
    add_to_part(pages.parts[pages.part[index]], range.begin, range.count, crc);
    crc = 0, done = 0;
  };
  reader_.read_direct(pages.ranges, consume, ledger);
  for (Target& target : targets_) {
    if (target.done < target.piece->count) target.unread.emplace_back(target.done, target.piece->count);
  }
}

void SinglePassLoader::scatter(std::span<const std::byte> bytes, int64_t offset) {
  const int64_t end = offset + std::ssize(bytes);
  while (first_target_ < targets_.size() && targets_[first_target_].end <= offset) ++first_target_;
  for (size_t i = first_target_; i < targets_.size() && targets_[i].begin < end; ++i) {
    Target& target = targets_[i];
    if (target.end <= offset) continue;
    const int64_t width = element_bytes(target.tensor->dtype);
    // Copies only complete elements. read_remaining() reads the elements that the chunk splits and those that other
    // ranks verify.
    const int64_t first = (std::max(offset, target.begin) - target.tensor_begin + width - 1) / width;
    const int64_t last = (std::min(end, target.end) - target.tensor_begin) / width;
    const int64_t first_filled = elements_before(*target.piece, first);
    const int64_t last_filled = elements_before(*target.piece, last);
    if (first_filled >= last_filled) continue;
    write_overlaps(*target.tensor, *target.piece, first,
                   bytes.subspan(static_cast<size_t>(target.tensor_begin + first * width - offset),
                                 static_cast<size_t>((last - first) * width)));
    if (first_filled > target.done) target.unread.emplace_back(target.done, first_filled);
    target.done = last_filled;
  }
}

void SinglePassLoader::read_remaining(Ledger* ledger) {
  const StagingRing ring(ledger);
  for (const Target& target : targets_) {
    const StatePiece& piece = *target.piece;
    const int64_t width = element_bytes(target.tensor->dtype), most = StagingRing::kChunkBytes / width;
    const auto first_of = [&](size_t i) { return element_at(piece, target.unread[i].first); };
    const auto last_of = [&](size_t i) { return element_at(piece, target.unread[i].second - 1) + 1; };
    for (size_t i = 0, next = 0; i < target.unread.size(); i = next) {
      const int64_t first = first_of(i);
      // Small ranges and the gaps between them are read together.
      for (next = i + 1; next < target.unread.size() && last_of(next) - first <= most &&
                         (first_of(next) - last_of(next - 1)) * width <= kSkippedGapBytes;)
        ++next;
      if (next == i + 1) {
        const auto [begin, end] = target.unread[i];
        for_each_range(piece, width, begin, end, most, [&](int64_t from, int64_t to) {
          write_overlaps(*target.tensor, piece, from, read_elements(target, from, to, ring.chunk(0)));
        });
        continue;
      }
      const auto bytes = read_elements(target, first, last_of(next - 1), ring.chunk(0));
      for (size_t each = i; each < next; ++each)
        write_overlaps(*target.tensor, piece, first_of(each),
                       bytes.subspan(static_cast<size_t>((first_of(each) - first) * width),
                                     static_cast<size_t>((last_of(each) - first_of(each)) * width)));
    }
  }
}

/// Reads elements [first, last) of the tensor to the start of `to`. Returns their bytes.
std::span<const std::byte> SinglePassLoader::read_elements(const Target& target, int64_t first, int64_t last,
                                                           std::span<std::byte> to) const {
  const int64_t width = element_bytes(target.tensor->dtype);
  const auto bytes = to.first(static_cast<size_t>((last - first) * width));
  reader_.read(bytes, target.tensor_begin + first * width);
  return bytes;
}

}  // namespace aliquot
