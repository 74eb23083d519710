#pragma once
// Bytes of pieces, wherever these lie.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sharding/state.h"

namespace aliquot {

/// Leaves the piece's bytes [first_byte, first_byte + to.size()), as they stand in a file, at `to`. A PieceAccess is
/// asked for whole elements only, at most kStagingChunkBytes at once.
void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to);

/// Puts whole elements, from element `first` of the piece on, where the piece lies.
void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from);

/// A run of a tensor's elements within one of its pieces; `first` counts in the tensor.
struct Overlap {
  int64_t first, count;

  bool empty() const { return count <= 0; }
};
/// What the piece has of the tensor's elements [first, last).
inline Overlap overlap(const StatePiece& piece, int64_t first, int64_t last) {
  const int64_t begin = std::max(first, piece.offset);
  return {begin, std::min(last, piece.offset + piece.count) - begin};
}

/// Puts whole elements, from element `first` of the tensor on, into the pieces that have them.
void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from);

}  // namespace aliquot
