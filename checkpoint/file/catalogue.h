#pragma once
// The catalogue of a save. It lists the elements of each tensor that each rank has.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/file/bands.h"
#include "checkpoint/file/tensor_entry.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// A piece of a tensor, held by a rank.
struct HeldPiece {
  int32_t tensor = 0;      // index in Catalogue::tensors
  StridedExtent elements;  // `source` is the index in StateTensor::pieces on that rank
};

/// All members except `own` are identical on every rank.
struct Catalogue {
  std::vector<TensorEntry> tensors;     // sorted by path
  std::vector<const StateTensor*> own;  // this rank's tensors, in the order of `tensors`
  std::vector<HeldPiece> held_pieces;   // sorted by tensor; the pieces cover each element of each tensor once
};

/// Returns the extent of a piece of a tensor, in units of which an element has `width`. `begin` is the position of the
/// tensor. The piece must have elements.
StridedExtent extent_of(const StatePiece& piece, int64_t begin, int64_t width, int32_t rank, int32_t source);

/// Lists the tensors of this rank's state; `held_pieces` stays empty. Throws UsageError for an invalid or duplicate
/// path, or one that is also the HDF5 group of another tensor. Also throws UsageError for a shape that is too large,
/// and for a piece outside its tensor.
Catalogue local_catalogue(const State& state);

/// Builds the catalogue of all ranks. Collective. Throws the same UsageError on every rank in these cases:
/// - the state of a rank is invalid;
/// - tensors, scalars, step or directory differ from those of rank 0 (the message gives the first difference);
/// - no rank holds an element, or several ranks hold it in pieces that are not marked as copies.
Catalogue agree_on_catalogue(const State& state, Communicator& communicator, const std::filesystem::path& directory);

}  // namespace aliquot
