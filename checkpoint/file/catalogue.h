#pragma once
// What all ranks together hold, proved to be one whole state.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/file/tensor_entry.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// Elements [offset, offset + count) of a tensor, held by a rank.
struct HeldPiece {
  int32_t tensor = 0;  // in Catalogue::tensors
  int32_t rank = 0;
  int32_t piece = 0;  // in the rank's own StateTensor
  int64_t offset = 0, count = 0;
};

/// The same on every rank, but for `own`.
struct Catalogue {
  std::vector<TensorEntry> tensors;     // in order of path
  std::vector<const StateTensor*> own;  // this rank's, in the same order
  std::vector<HeldPiece> held_pieces;   // by tensor, then offset: they tile every tensor exactly once
};

/// The tensors of one rank's state, in order of path. Throws UsageError for one that no file could hold: a path that is
/// bad, there twice or a group of another; a shape too large; a piece outside its tensor.
Catalogue local_catalogue(const State& state);

/// Agrees with all ranks on what is saved, and where. Throws UsageError, on every rank the same, when a rank's state is
/// bad, when ranks name other tensors, scalars, steps or directories than rank 0 (the first difference is told), and
/// when elements are held by none or by several.
Catalogue agree_on_catalogue(const State& state, Communicator& communicator, const std::filesystem::path& directory);

}  // namespace aliquot
