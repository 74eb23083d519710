#include "apps/data/loader.h"

namespace aliquot {
namespace {

// The finalizer of splitmix64: every bit of the result depends on every bit of the input.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

Permutation::Permutation(int64_t count, uint64_t seed, uint64_t epoch) : count_(static_cast<uint64_t>(count)) {
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t state = mix(mix(seed + 0x9E3779B97F4A7C15u) + epoch);
  for (uint64_t& key : keys_) key = state = mix(state + 0x9E3779B97F4A7C15u);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  uint64_t left = value >> half_bits_, right = value & half_mask_;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right + key) & half_mask_);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  // The network permutes at most 4 x count values, so the loop applies it at most four times on average.
  uint64_t value = encrypt(static_cast<uint64_t>(index));
  while (value >= count_) value = encrypt(value);
  return static_cast<int64_t>(value);
}

}  // namespace aliquot
