#pragma once
// The model's own pointers: set when a unit's scope opens, guarded when it closes.

#include <vector>

#include "engine/run/memory/guard_range.h"
#include "engine/run/memory/model_addresses.h"
#include "engine/run/memory/pointer_slot.h"

namespace aliquot {

/// One unit at a time; the plan must outlive it.
class PointerBindings {
 public:
  /// `slots` by unit, then parameter. All pointers are guarded from now on. Throws UsageError for a pointer to elements of
  /// another size than the plan's precision has, for a value that is trained and has no gradient, and for one pointer that
  /// two parameters of a use are given.
  PointerBindings(const Plan& plan, std::vector<std::vector<PointerSlots>> slots);
  ~PointerBindings();
  PointerBindings(const PointerBindings&) = delete;
  PointerBindings& operator=(const PointerBindings&) = delete;

  /// The unit is whole: its values, and in backward its gradients, are where the model may use them.
  void open(UnitId unit, bool backward, const ModelAddresses& addresses);
  void guard_all();
  /// They fault again.
  void close(UnitId unit);

 private:
  template <typename Body>
  void for_parameters(UnitId unit, Body body);
  void check_slots() const;
  void refuse_shared_pointers() const;

  const Plan& plan_;
  std::vector<std::vector<PointerSlots>> slots_;
  std::vector<std::size_t> first_of_unit_;
  GuardRange values_, gradients_;
};

}  // namespace aliquot
