#pragma once
// Whose gradients are not finite.

#include <atomic>

#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// Looks at what this rank's own backward left before ranks add it up. That takes a pass over all gradients, so it is done in a
/// step that follows one which was not finite: what a machine spoils it spoils again. On hosts alone. Used from the rank's own
/// thread; what it is given must outlive it.
class NonFiniteGradientDetector {
 public:
  NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, const Device& device);

  /// Forgets what was found. `enabled`: in this step.
  void begin_step(bool enabled);
  /// On the lane of a reduction, before its work.
  void before(Stream& lane, OperationId operation);
  /// Once that lane has come to its end.
  bool found() const { return found_; }

 private:
  const Plan& plan_;
  const StepMemory& memory_;
  bool supported_, enabled_ = false;
  std::atomic<bool> found_ = false;
};

}  // namespace aliquot
