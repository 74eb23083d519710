#pragma once
// The parts of flat buffers that a rank of a tensor group uses. Layouts have space for the largest slice of each
// tensor. The rest of a shorter slice is padding.

#include <string>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Returns the slice of tensor `tensor` of a flat buffer that the ranks with tensor coordinate `coordinate` have. It is
/// the full tensor if the tensor is not split.
Slice slice_of(const Plan& plan, int32_t flat, int32_t tensor, int coordinate);

/// Returns the pieces of the flat buffer that rank `rank` of a shard group owns, in order of shard_offset, like
/// FlatLayout::pieces(). If a slice of `coordinate` is shorter than its space, the rest of the space is left out.
std::vector<Piece> slice_pieces(const Plan& plan, int32_t flat, int rank, int coordinate);

/// Returns the elements of the flat buffer that belong to no slice of tensor coordinate `coordinate`, including red
/// zones, in order. Like FlatLayout::gaps() if all slices have the shapes of the layout.
std::vector<Gap> slice_gaps(const Plan& plan, int32_t flat, int coordinate);

/// Describes block `block` of a flat buffer, for messages: "elements 1536 to 1791 of h.1.mlp.c_fc.weight". Empty if the
/// block is padding.
std::string block_text(const Plan& plan, int32_t flat, int64_t block, int coordinate);

}  // namespace aliquot
