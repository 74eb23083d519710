#pragma once
// Functions that read and write pieces, in host memory or through the tensor's PieceAccess.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sharding/state.h"

namespace aliquot {

/// Copies bytes [first_byte, first_byte + to.size()) of the piece to `to`. The bytes are numbered as if the piece were
/// stored in the tensor's dtype. If the tensor has a PieceAccess, each of its calls reads complete elements of at most
/// kStagingChunkBytes.
void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to);

/// Writes complete elements to the piece, starting at its element `first`.
void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from);

/// Consecutive elements of a tensor in one piece. `first` is an index in the tensor.
struct Overlap {
  int64_t first, count;

  bool empty() const { return count <= 0; }
};
/// Returns the elements of the piece that are in [first, last) of the tensor.
inline Overlap overlap(const StatePiece& piece, int64_t first, int64_t last) {
  const int64_t begin = std::max(first, piece.offset);
  return {begin, std::min(last, piece.offset + piece.count) - begin};
}

/// Writes complete elements to the pieces that contain them, starting at element `first` of the tensor.
void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from);

}  // namespace aliquot
