#pragma once
// Detection of ranks whose gradients are not finite before the reduction.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "kernels/device/device.h"

namespace aliquot {

/// Checks this rank's gradients before they are added to those of other ranks, to find the rank that causes values that
/// are not finite. The check reads all gradients, which takes time. It therefore runs only in a step after a step with
/// such values, because a faulty machine tends to fail again. Used from the rank's own thread. Everything passed must
/// outlive it.
class NonFiniteGradientDetector {
 public:
  /// On a GPU, allocates pinned host memory.
  NonFiniteGradientDetector(const Plan& plan, const StepMemory& memory, Device& device);

  /// Resets the result. `enabled`: whether to check in this step. No check of the last step may still run.
  void begin_step(bool enabled);
  bool enabled() const { return enabled_; }
  /// Enqueues the check if the operation is a reduce or a sum over the tensor group. Called before the work of the
  /// operation.
  void before(Stream& lane, OperationId operation);
  /// Whether a value was not finite in this step. Valid when no check still runs.
  bool found() const;

 private:
  /// A search in the gradients of one flat buffer, before one operation.
  struct Search {
    OperationId operation;
    int32_t flat;
    int64_t count;  // number of gradients
  };
  const Plan& plan_;
  const StepMemory& memory_;
  const Kernels& kernels_;
  std::vector<Search> searches_;       // in the order of operations
  std::vector<int64_t> host_results_;  // memory of results_ on hosts
  Buffer pinned_results_;              // the same on GPUs
  /// For each search, the index of the first value that is not finite, or the number of gradients if there is none.
  std::span<int64_t> results_;
  bool enabled_ = false;
};

}  // namespace aliquot
