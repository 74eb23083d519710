#pragma once
// The model's own pointers: set when a unit's scope opens, guarded when it closes.

#include <vector>

#include "engine/guard_range.h"
#include "engine/step_memory.h"

namespace aliquot {

/// Where one parameter's model keeps its pointers; either may be null.
struct PointerSlots {
  float** value = nullptr;
  float** gradient = nullptr;
};

/// One unit at a time; the plan and memory must outlive it.
class Bindings {
 public:
  /// `slots` by unit, then parameter. All pointers are guarded from now on.
  Bindings(const Plan& plan, const StepMemory& memory, std::vector<std::vector<PointerSlots>> slots);
  ~Bindings();
  Bindings(const Bindings&) = delete;
  Bindings& operator=(const Bindings&) = delete;

  /// The unit is whole: its values, and in backward its gradients, are where the model may use them.
  void open(UnitId unit, bool backward);
  /// They fault again.
  void close(UnitId unit);

 private:
  template <typename Body>
  void for_parameters(UnitId unit, Body body);

  const Plan& plan_;
  const StepMemory& memory_;
  std::vector<std::vector<PointerSlots>> slots_;
  std::vector<std::size_t> first_of_unit_;
  GuardRange values_, gradients_;
};

}  // namespace aliquot
