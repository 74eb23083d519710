#include "checkpoint/file/file_image.h"

#include <algorithm>
#include <cstring>

#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

// The ranks exchange fragments in rounds of about this many bytes in total, which bounds the memory.
constexpr int64_t kRoundBytes = 4 << 20;

std::vector<FileExtent> extents_of(const Catalogue& catalogue, int64_t file_bytes) {
  std::vector<FileExtent> held;
  for (size_t i = 0; i < catalogue.held_pieces.size(); ++i) {
    const HeldPiece& held_piece = catalogue.held_pieces[i];
    const TensorEntry& tensor = catalogue.tensors[static_cast<size_t>(held_piece.tensor)];
    const int64_t width = element_bytes(tensor.dtype), begin = tensor.file_offset + held_piece.offset * width;
    held.push_back({begin, begin + held_piece.count * width, held_piece.rank, static_cast<int32_t>(i)});
  }
  std::sort(held.begin(), held.end(), [](const FileExtent& a, const FileExtent& b) { return a.begin < b.begin; });
  std::vector<FileExtent> extents;
  int64_t end = 0;
  int32_t gap = 0;
  const auto fill_to = [&](int64_t next) {
    if (end < next) extents.push_back({end, next, 0, -1 - gap++});
  };
  for (const FileExtent& extent : held) {
    fill_to(extent.begin);
    extents.push_back(extent);
    end = extent.end;
  }
  fill_to(file_bytes);
  return extents;
}

}  // namespace

FileImage::FileImage(const Catalogue& catalogue, int64_t file_bytes, std::span<const FileGap> gaps, int rank)
    : catalogue_(catalogue),
      gaps_(gaps),
      rank_(rank),
      extents_(extents_of(catalogue, file_bytes)),
      plan_(plan_pages(extents_, kPageBytes)) {}

void FileImage::exchange_fragments(Communicator& communicator) {
  const auto& fragments = plan_.fragments;
  for (size_t first = 0, last = 0; first < fragments.size(); first = last) {
    int64_t round_bytes = 0;
    while (last < fragments.size() && round_bytes < kRoundBytes) {
      round_bytes += fragments[last].end - fragments[last].begin;
      ++last;
    }
    const auto sent = gather_or_throw(communicator, [&] {
      std::string own;
      for (size_t i = first; i < last; ++i) {
        if (fragments[i].from != rank_) continue;
        const size_t at = own.size(), count = static_cast<size_t>(fragments[i].end - fragments[i].begin);
        own.resize(at + count);
        read({reinterpret_cast<std::byte*>(own.data()) + at, count}, fragments[i].begin);
      }
      return own;
    });
    std::vector<size_t> taken(sent.size(), 0);
    for (size_t i = first; i < last; ++i) {
      const auto from = static_cast<size_t>(fragments[i].from);
      const auto count = static_cast<size_t>(fragments[i].end - fragments[i].begin);
      if (fragments[i].to == rank_) received_[fragments[i].begin] = sent[from].substr(taken[from], count);
      taken[from] += count;
    }
  }
}

std::vector<PageRun> FileImage::own_runs() const {
  std::vector<PageRun> runs;
  std::copy_if(plan_.runs.begin(), plan_.runs.end(), std::back_inserter(runs),
               [&](const PageRun& run) { return run.rank == rank_; });
  return runs;
}

void FileImage::read(std::span<std::byte> to, int64_t offset) const {
  auto extent = std::upper_bound(extents_.begin(), extents_.end(), offset,
                                 [](int64_t at, const FileExtent& each) { return at < each.end; });
  while (!to.empty()) {
    const auto part = std::min(to.size(), static_cast<size_t>(extent->end - offset));
    if (extent->rank == rank_) {
      read_own(*extent, to.first(part), offset);
    } else {
      read_received(to.first(part), offset);
    }
    to = to.subspan(part);
    offset += static_cast<int64_t>(part);
    ++extent;
  }
}

void FileImage::read_own(const FileExtent& extent, std::span<std::byte> to, int64_t offset) const {
  if (extent.source < 0) {
    const FileGap& gap = gaps_[static_cast<size_t>(-1 - extent.source)];
    std::memcpy(to.data(), gap.bytes.data() + (offset - gap.offset), to.size());
    return;
  }
  const HeldPiece& held_piece = catalogue_.held_pieces[static_cast<size_t>(extent.source)];
  const StateTensor& tensor = *catalogue_.own[static_cast<size_t>(held_piece.tensor)];
  read_piece(tensor, tensor.pieces[static_cast<size_t>(held_piece.piece)], offset - extent.begin, to);
}

void FileImage::read_received(std::span<std::byte> to, int64_t offset) const {
  const auto after = received_.upper_bound(offset);
  const auto& [begin, bytes] = *std::prev(after);
  std::memcpy(to.data(), bytes.data() + (offset - begin), to.size());
}

}  // namespace aliquot
