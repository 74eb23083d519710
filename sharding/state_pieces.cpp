#include "sharding/state_pieces.h"

#include <algorithm>
#include <cstring>

#include "kernels/system/non_temporal_copy.h"

namespace aliquot {
namespace {

/// Reads part of one element. This is required if a range of bytes begins or ends inside an element. Returns the number
/// of bytes read.
int64_t read_cut_element(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte,
                         std::span<std::byte> to) {
  std::byte element[8];
  const int64_t width = element_bytes(tensor.dtype), within = first_byte % width;
  const int64_t part = std::min(static_cast<int64_t>(to.size()), width - within);
  tensor.access->read(piece, first_byte / width, 1, element);
  std::memcpy(to.data(), element + within, static_cast<size_t>(part));
  return part;
}

}  // namespace

void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to) {
  if (tensor.access == nullptr) {
    std::memcpy(to.data(), piece.bytes + first_byte, to.size());
    return;
  }
  const int64_t width = element_bytes(tensor.dtype);
  while (!to.empty()) {
    int64_t part = std::min<int64_t>(static_cast<int64_t>(to.size()), kStagingChunkBytes) / width * width;
    if (first_byte % width != 0 || part == 0) {
      part = read_cut_element(tensor, piece, first_byte, to);
    } else {
      tensor.access->read(piece, first_byte / width, part / width, to.data());
    }
    first_byte += part;
    to = to.subspan(static_cast<size_t>(part));
  }
}

void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from) {
  const int64_t width = element_bytes(tensor.dtype);
  if (tensor.access != nullptr) {
    tensor.access->write(piece, first, static_cast<int64_t>(from.size()) / width, from.data());
  } else if (!from.empty()) {
    non_temporal_copy(piece.bytes + first * width, from.data(), from.size());
  }
}

void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from) {
  const int64_t width = element_bytes(tensor.dtype), last = first + std::ssize(from) / width;
  for (const StatePiece& piece : tensor.pieces) {
    const Overlap part = overlap(piece, first, last);
    if (part.empty()) continue;
    const auto bytes =
        from.subspan(static_cast<size_t>((part.first - first) * width), static_cast<size_t>(part.count * width));
    write_piece(tensor, piece, part.first - piece.offset, bytes);
  }
}

}  // namespace aliquot
