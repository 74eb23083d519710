#pragma once
// Guard addresses of the model's pointers to all values, or to all gradients.

#include <string>
#include <vector>

#include "engine/run/memory/guard_range.h"
#include "engine/run/memory/pointer_slot.h"

namespace aliquot {

/// Slices of one pointer get adjacent guard addresses in the order of their indices. So one base pointer leads to the
/// guard addresses of all slices, and an access to a closed slice is attributed to its parameter.
class SlotGuards {
 public:
  struct Slot {
    PointerSlot slot;
    std::string parameter;  // for messages
    int64_t size_bytes;     // of the tensor, as the model accesses it on this rank
  };
  /// `prefix`: the words before the name of a parameter in messages. Throws UsageError if slices of one pointer differ
  /// in their sizes or counts, if two have the same index, or if a pointer is used with and without slice().
  SlotGuards(const std::vector<Slot>& slots, const std::string& prefix);

  /// Makes the pointer of slot number `slot` lead to its guard address.
  void set(std::size_t slot) const;
  /// Makes the pointer of slot number `slot` lead to `to`.
  void set(std::size_t slot, std::byte* to) const { slots_[slot].slot.set(to, slots_[slot].size_bytes); }
  /// Sets all pointers to null.
  void set_null() const;
  const PointerSlot& slot(std::size_t slot) const { return slots_[slot].slot; }

 private:
  std::vector<GuardRange::Tensor> arrange(const std::string& prefix);
  void arrange_block(const std::vector<std::size_t>& block, const std::string& prefix,
                     std::vector<GuardRange::Tensor>& tensors);

  std::vector<Slot> slots_;
  std::vector<std::size_t> tensors_;  // indexed by slot: its tensor in the range
  GuardRange range_;
};

}  // namespace aliquot
