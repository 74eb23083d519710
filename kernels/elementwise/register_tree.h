#pragma once
// Functions that sum over sources along the aligned binary tree, in one CUDA thread. They keep partial sums in
// registers. Tests call them on hosts.

#include "kernels/formats/host_device.h"

namespace aliquot {

/// Returns the sum of leaves [first, min(first + 8, count)). The range must not be empty, and `first` must be a
/// multiple of 8. Loads all leaves before the first addition.
template <class Value, class Leaf>
ALIQUOT_HOST_DEVICE Value sum_of_8(int first, int count, const Leaf& leaf) {
  Value v[8] = {};
  ALIQUOT_UNROLL
  for (int j = 0; j < 8; ++j) {
    if (first + j < count) v[j] = leaf(first + j);
  }
  ALIQUOT_UNROLL
  for (int half = 1; half < 8; half *= 2) {
    ALIQUOT_UNROLL
    for (int j = 0; j < 8; j += 2 * half) {
      if (first + j + half < count) v[j] = v[j] + v[j + half];
    }
  }
  return v[0];
}

/// Returns the sum of leaf(0) to leaf(count - 1), with count from 1 to 8 * 2^(kLevels - 1). `partial` is a binary
/// counter whose carries are additions. After g groups of eight, partial[level] holds a subtree of 2^level groups if
/// bit `level` of g is set.
template <class Value, int kLevels, class Leaf>
ALIQUOT_HOST_DEVICE Value aligned_tree_sum(int count, const Leaf& leaf) {
  Value partial[kLevels] = {};
  const int group_count = (count + 7) / 8;
  for (int group = 0; group < group_count; ++group) {
    Value carry = sum_of_8<Value>(8 * group, count, leaf);
    bool placed = false;
    ALIQUOT_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (!placed && ((group >> level) & 1) != 0) {
        carry = partial[level] + carry;
      } else if (!placed) {
        partial[level] = carry;
        placed = true;
      }
    }
  }
  Value sum = {};
  bool found = false;
  ALIQUOT_UNROLL
  for (int level = 0; level < kLevels; ++level) {
    if (((group_count >> level) & 1) == 0) continue;
    sum = found ? partial[level] + sum : partial[level];
    found = true;
  }
  return sum;
}

}  // namespace aliquot
