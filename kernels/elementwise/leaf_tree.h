#pragma once
// The sum of consecutive doubles in a binary tree. This is the plain form of Kernels::sum_runs().

#include <bit>
#include <cstdint>

namespace aliquot {

/// Returns the sum of `count` leaves. `count` is 1 or more. It is the sum of a left part and the rest. The number of
/// leaves in the left part is the largest power of two that is less than `count`. So the leaves have the same sum as in
/// a larger tree of which they are a subtree, also if only the first leaves of this subtree exist.
inline double leaf_tree_sum(const double* leaves, int64_t count) {
  if (count == 1) return leaves[0];
  if (count == 8) {  // the same additions as below, without function calls
    return ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) + ((leaves[4] + leaves[5]) + (leaves[6] + leaves[7]));
  }
  const auto left = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)) / 2);
  return leaf_tree_sum(leaves, left) + leaf_tree_sum(leaves + left, count - left);
}

}  // namespace aliquot
