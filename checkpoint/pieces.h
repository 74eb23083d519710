#pragma once
// Bytes of pieces, wherever these lie.

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

}  // namespace aliquot
