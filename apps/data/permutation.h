#pragma once
// A shuffled order that needs no memory.

#include <cstdint>

namespace aliquot {

/// A permutation of [0, count), different for every key, any element computed on its own: a Feistel network on the next
/// even power of two, walked until it lands inside. count is at least 1.
class Permutation {
 public:
  Permutation(int64_t count, uint64_t seed, uint64_t epoch);

  /// Where place `index` of the order points.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t encrypt(uint64_t value) const;

  uint64_t count_;
  int half_bits_ = 1;
  uint64_t half_mask_ = 1;
  uint64_t keys_[kRounds] = {};
};

}  // namespace aliquot
