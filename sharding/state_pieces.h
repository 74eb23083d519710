#pragma once
// Reading and writing pieces, in host memory or through their PieceAccess.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sharding/state.h"

namespace aliquot {

/// Copies bytes [first_byte, first_byte + to.size()) of the piece to `to`, as a file stores them. Calls the PieceAccess
/// for complete elements only, at most kStagingChunkBytes at a time.
void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to);

/// Writes complete elements to the piece, from its element `first` on.
void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from);

/// Consecutive elements of a tensor within one piece. `first` is an index in the tensor.
struct Overlap {
  int64_t first, count;

  bool empty() const { return count <= 0; }
};
/// The elements of the piece that are in [first, last) of the tensor.
inline Overlap overlap(const StatePiece& piece, int64_t first, int64_t last) {
  const int64_t begin = std::max(first, piece.offset);
  return {begin, std::min(last, piece.offset + piece.count) - begin};
}

/// Writes complete elements, from element `first` of the tensor on, to the pieces that contain them.
void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from);

}  // namespace aliquot
