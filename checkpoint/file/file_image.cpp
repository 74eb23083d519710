#include "checkpoint/file/file_image.h"

#include <algorithm>
#include <cstring>

#include "sharding/comm/run_on_all_or_throw.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

// The ranks exchange fragments in rounds of about this many bytes in total, which bounds the memory.
constexpr int64_t kRoundBytes = 4 << 20;

Bands owners_of(const Catalogue& catalogue, int64_t file_bytes) {
  std::vector<StridedExtent> held;
  held.reserve(catalogue.held_pieces.size());
  for (size_t i = 0; i < catalogue.held_pieces.size(); ++i) {
    const auto& [tensor, elements] = catalogue.held_pieces[i];
    const TensorEntry& entry = catalogue.tensors[static_cast<size_t>(tensor)];
    const int64_t width = element_bytes(entry.dtype);
    held.push_back({entry.file_offset + elements.begin * width, elements.run * width, elements.stride * width,
                    elements.run_count, elements.rank, static_cast<int32_t>(i)});
  }
  Bands owners(held);
  int32_t gap = 0;
  owners.complete(file_bytes, [&](int64_t begin, int64_t end) {
    return std::vector<FileExtent>{{begin, end, 0, -1 - gap++}};
  });
  return owners;
}

}  // namespace

FileImage::FileImage(const Catalogue& catalogue, int64_t file_bytes, std::span<const FileGap> gaps, int rank)
    : catalogue_(catalogue), gaps_(gaps), rank_(rank), layout_(owners_of(catalogue, file_bytes), file_bytes) {}

void FileImage::exchange(std::span<const Fragment> fragments, Communicator& communicator,
                         const std::function<void()>& before) {
  const auto clear = [&] {
    if (before) before();
    received_.clear();
    received_bytes_.clear();
  };
  for (size_t first = 0, last = 0; first < fragments.size(); first = last) {
    int64_t round_bytes = 0;
    while (last < fragments.size() && round_bytes < kRoundBytes) {
      round_bytes += fragments[last].end - fragments[last].begin;
      ++last;
    }
    exchange_round(
        fragments.subspan(first, last - first), communicator, first == 0 ? std::function<void()>(clear) : [] {});
  }
}

void FileImage::exchange_round(std::span<const Fragment> fragments, Communicator& communicator,
                               const std::function<void()>& before) {
  const auto sent = gather_or_throw(communicator, [&] {
    before();
    std::string own;
    for (const Fragment& fragment : fragments) {
      if (fragment.from != rank_) continue;
      const size_t at = own.size(), count = static_cast<size_t>(fragment.end - fragment.begin);
      own.resize(at + count);
      read({reinterpret_cast<std::byte*>(own.data()) + at, count}, fragment.begin);
    }
    return own;
  });
  std::vector<size_t> taken(sent.size(), 0);
  for (const Fragment& fragment : fragments) {
    const auto from = static_cast<size_t>(fragment.from);
    const auto count = static_cast<size_t>(fragment.end - fragment.begin);
    if (fragment.to == rank_) {
      received_.push_back({fragment.begin, received_bytes_.size()});
      received_bytes_.append(sent[from], taken[from], count);
    }
    taken[from] += count;
  }
}

void FileImage::read(std::span<std::byte> to, int64_t offset) const {
  layout_.owners().for_each(offset, offset + std::ssize(to), [&](const FileExtent& extent) {
    const auto part =
        to.subspan(static_cast<size_t>(extent.begin - offset), static_cast<size_t>(extent.end - extent.begin));
    if (extent.rank == rank_) {
      read_own(extent, part);
    } else {
      read_received(part, extent.begin);
    }
  });
}

void FileImage::read_own(const FileExtent& extent, std::span<std::byte> to) const {
  if (extent.source < 0) {
    const FileGap& gap = gaps_[static_cast<size_t>(-1 - extent.source)];
    std::memcpy(to.data(), gap.bytes.data() + (extent.begin - gap.offset), to.size());
    return;
  }
  const HeldPiece& held = catalogue_.held_pieces[static_cast<size_t>(extent.source)];
  const TensorEntry& entry = catalogue_.tensors[static_cast<size_t>(held.tensor)];
  const int64_t width = element_bytes(entry.dtype), run = held.elements.run * width;
  const int64_t stride = held.elements.run_count > 1 ? held.elements.stride * width : run;
  const int64_t distance = extent.begin - entry.file_offset - held.elements.begin * width;
  const StateTensor& tensor = *catalogue_.own[static_cast<size_t>(held.tensor)];
  read_piece(tensor, tensor.pieces[static_cast<size_t>(held.elements.source)],
             distance / stride * run + distance % stride, to);
}

void FileImage::read_received(std::span<std::byte> to, int64_t offset) const {
  const auto after = std::upper_bound(received_.begin(), received_.end(), offset,
                                      [](int64_t at, const Received& each) { return at < each.begin; });
  const Received& received = *std::prev(after);
  std::memcpy(to.data(), received_bytes_.data() + received.at + static_cast<size_t>(offset - received.begin),
              to.size());
}

}  // namespace aliquot
