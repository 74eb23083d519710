#pragma once
// Which rank works on which whole matrices, and which of them at one time.

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A matrix of a flat, as it lies at its owner: row-major, at `offset_bytes` of the group's memory, or in its own place of
/// the flat where every rank updates it whole.
struct OwnedMatrix {
  int32_t flat, tensor;
  int32_t owner;
  MatrixShape shape;
  int64_t offset_bytes = 0;

  int64_t size_bytes() const { return shape.rows * shape.columns * static_cast<int64_t>(sizeof(float)); }
};

/// Units that follow one another, as few as keep all owners about equally busy: more would need more memory at one time.
struct MatrixGroup {
  std::vector<int32_t> flats;
  std::vector<OwnedMatrix> matrices;  // in the order of flats, then of tensors
  bool in_place = false;              // owners work where the matrices lie: nothing is collected
  int64_t held_bytes = 0;             // by the owner of most; 0 in place
  int64_t scratch_bytes = 0;          // that the largest matrix needs
  double work = 0;                    // multiply-adds of the busiest owner
};

}  // namespace aliquot
#pragma GCC visibility pop
