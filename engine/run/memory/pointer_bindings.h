#pragma once
// Sets the model's pointers to parameters when a scope of their unit opens, and to guard addresses when it closes.

#include <vector>

#include "engine/run/memory/model_addresses.h"
#include "engine/run/memory/slot_guards.h"

namespace aliquot {

/// Owns the guard addresses. Used from the rank's own thread. The plan must outlive it.
class PointerBindings {
 public:
  /// `slots` is indexed by unit, then parameter. `coordinate`: the tensor coordinate of this rank. Sets all pointers to
  /// guard addresses. Throws UsageError if the element size of a pointer differs from that of the plan's precision.
  /// Also throws it if a trainable parameter has no pointer to its gradient, if two parameters of a use have the same
  /// pointer, or if slices of a pointer do not fit together.
  PointerBindings(const Plan& plan, const std::vector<std::vector<PointerSlots>>& slots, int coordinate);
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

  const Plan& plan_;
  std::vector<std::size_t> first_of_unit_;  // index of a unit's first parameter in values_ and gradients_
  SlotGuards values_, gradients_;
};

}  // namespace aliquot
