#pragma once
// The assignment of whole matrices (Muon) to owner ranks, and the groups in which they are processed.

#include <cstdint>
#include <vector>

#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// A matrix and the rank that orthogonalizes it. The owner stores it in row-major order, at `offset_bytes` of the
/// buffer Role::kOwnedMatrices, or, if the group is in place, within the flat buffer.
struct OwnedMatrix {
  int32_t flat, tensor;
  int32_t owner;
  MatrixShape shape;
  int64_t offset_bytes = 0;

  int64_t size_bytes() const { return shape.rows * shape.columns * static_cast<int64_t>(sizeof(float)); }
};

/// Consecutive units whose matrices are orthogonalized at the same time. A group has just enough units to give all
/// owners about equal work, because larger groups need more memory.
struct MatrixGroup {
  std::vector<int32_t> flats;
  std::vector<OwnedMatrix> matrices;  // ordered by flat buffer, then by tensor
  bool in_place = false;              // every rank has all matrices: owners work in the flat buffer, without a gather
  int64_t held_bytes = 0;             // largest total size of the matrices of one owner; 0 if in place
  int64_t scratch_bytes = 0;          // scratch memory for the largest matrix
  double work = 0;                    // multiply-adds of the busiest owner
};

}  // namespace aliquot
#pragma GCC visibility pop
