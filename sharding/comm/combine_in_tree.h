#pragma once
// The order in which values of ranks are combined.

#include <bit>
#include <cstdint>

namespace aliquot {

/// Combines leaf(0), ..., leaf(count - 1) with combine(left, right) along a binary tree: pairs (0, 1), (2, 3), ...,
/// then pairs of pairs, and so on. A tree node without a right child has the value of its left child. `count` is at
/// least 1.
template <typename Value, typename Leaf, typename Combine>
Value combine_in_tree(int count, Leaf leaf, Combine combine) {
  constexpr int kMaxLevels = 31;
  Value pending[kMaxLevels];  // one complete subtree per set bit of the current leaf count, the largest first
  int pending_count = 0;
  for (int i = 0; i < count; ++i) {
    Value value = leaf(i);
    for (int n = std::countr_one(static_cast<uint32_t>(i)); n > 0; --n)
      value = combine(pending[--pending_count], value);
    pending[pending_count++] = value;
  }
  Value value = pending[--pending_count];
  while (pending_count > 0) value = combine(pending[--pending_count], value);
  return value;
}

}  // namespace aliquot
