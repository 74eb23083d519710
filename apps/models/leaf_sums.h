#pragma once
// Sums over the leaves of a tensor group: see TensorGroup::fixed_leaves.

#include <bit>
#include <cstdint>

#include "apps/models/backend.h"

namespace aliquot {

/// A sum of arrays with `elements` elements. `scratch` has leaf_scratch_elements() elements.
struct LeafSum {
  float* to = nullptr;
  int64_t elements = 0;
  float* scratch = nullptr;
};

/// Returns the size of the scratch memory of a sum of `leaves` arrays, which is a power of two.
inline int64_t leaf_scratch_elements(std::size_t leaves, int64_t elements) {
  return (std::bit_width(leaves) - 1) * elements;
}

/// Assigns the sum of leaves [first, first + count) to sum.to. Adds them in a binary tree. `count` is a power of two.
/// assign_leaf(i, to) assigns leaf i to the array `to`.
template <class AssignLeaf>
void sum_leaves(Backend& backend, const LeafSum& sum, int64_t first, int64_t count, const AssignLeaf& assign_leaf) {
  if (count == 1) return assign_leaf(first, sum.to);
  const int64_t half = count / 2;
  sum_leaves(backend, sum, first, half, assign_leaf);
  const LeafSum right{sum.scratch, sum.elements, sum.scratch + sum.elements};
  sum_leaves(backend, right, first + half, half, assign_leaf);
  backend.add(sum.to, right.to, sum.elements);
}

}  // namespace aliquot
