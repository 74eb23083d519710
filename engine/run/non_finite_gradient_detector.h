#pragma once
// Detection of ranks whose gradients are not finite before the reduction.

#include <atomic>

#include "engine/run/memory/step_memory.h"

namespace aliquot {

/// Checks this rank's gradients before they are added to those of other ranks, to find the rank that causes values that
/// are not finite. The check reads all gradients, which takes time. It therefore runs only in a step after a step with
/// such values, because a faulty machine tends to fail again. Supported on hosts only. Used from the rank's own thread.
/// Everything passed must outlive it.
class NonFiniteGradientDetector {
 public:
  NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, const Device& device);

  /// Resets the result. `enabled`: whether to check in this step.
  void begin_step(bool enabled);
  /// Enqueues the check if the operation is a reduce or a sum over the tensor group. Called before the work of the
  /// operation.
  void before(Stream& lane, OperationId operation);
  /// Whether a value is not finite. Valid when the reduce lane is idle.
  bool found() const { return found_; }

 private:
  const Plan& plan_;
  const StepMemory& memory_;
  bool supported_, enabled_ = false;
  std::atomic<bool> found_ = false;
};

}  // namespace aliquot
