#pragma once
// Detection of ranks whose own gradients are not finite.

#include <atomic>

#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// Checks the gradients of this rank before the reduction, to find the rank that causes values that are not finite. The
/// check reads all gradients, so it runs only in a step that follows a non-finite one: a faulty machine tends to fail
/// again. Hosts only. Used from the rank's own thread. Everything passed must outlive it.
class NonFiniteGradientDetector {
 public:
  NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, const Device& device);

  /// Resets the result. `enabled`: whether to check in this step.
  void begin_step(bool enabled);
  /// Enqueues the check if the operation is a reduce. Called before the work of the operation.
  void before(Stream& lane, OperationId operation);
  /// The result. Valid when the lane of reductions is idle.
  bool found() const { return found_; }

 private:
  const Plan& plan_;
  const StepMemory& memory_;
  bool supported_, enabled_ = false;
  std::atomic<bool> found_ = false;
};

}  // namespace aliquot
