#pragma once
// Sets the model's pointers to parameters when a scope of their unit opens, and to guard addresses when it closes.

#include <vector>

#include "engine/run/memory/guard_range.h"
#include "engine/run/memory/model_addresses.h"
#include "engine/run/memory/pointer_slot.h"

namespace aliquot {

/// Owns the guard addresses. Used from the rank's own thread. The plan must outlive it.
class PointerBindings {
 public:
  /// `slots` is indexed by unit, then parameter. Sets all pointers to guard addresses. Throws UsageError if the element
  /// size of a pointer differs from that of the plan's precision. Also throws it if a trainable parameter has no
  /// pointer to its gradient, or if two parameters of a use have the same pointer.
  PointerBindings(const Plan& plan, std::vector<std::vector<PointerSlots>> slots);
  ~PointerBindings();
  PointerBindings(const PointerBindings&) = delete;
  PointerBindings& operator=(const PointerBindings&) = delete;

  /// Sets the pointers of a unit to the full parameters and gradients that model code with this verb accesses.
  void open(UnitId unit, Verb verb, const ModelAddresses& addresses);
  void guard_all();
  /// Sets the pointers of the unit to guard addresses.
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
