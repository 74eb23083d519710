#pragma once
// A hash table of 64-bit keys and values.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aliquot {

/// Keys and values are 64-bit integers. A key must not be kNoKey. Lookups are safe from several threads.
class FlatMap {
 public:
  static constexpr uint64_t kNoKey = ~uint64_t{0};

  FlatMap() : slots_(16) {}

  /// Returns the value of `key`, or null.
  const uint64_t* find(uint64_t key) const {
    for (size_t at = home(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return &slots_[at].value;
      if (slots_[at].key == kNoKey) return nullptr;
    }
  }

  void insert_or_assign(uint64_t key, uint64_t value) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = free_or_equal(key);
    if (slot.key == kNoKey) ++count_;
    slot = {key, value};
  }

  size_t count() const { return count_; }

 private:
  struct Slot {
    uint64_t key = kNoKey, value = 0;
  };

  size_t home(uint64_t key) const {
    key = (key ^ key >> 31) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(key ^ key >> 32) & (slots_.size() - 1);
  }
  Slot& free_or_equal(uint64_t key) {
    size_t at = home(key);
    while (slots_[at].key != kNoKey && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.key != kNoKey) free_or_equal(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;  // the number of slots is a power of two
  size_t count_ = 0;
};

}  // namespace aliquot
