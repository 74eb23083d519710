#pragma once
// Injection of the fault that ALIQUOT_FAULT describes into the operations of a step.

#include <memory>
#include <string>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/memory/weights.h"
#include "engine/run/updater.h"
#include "kernels/system/injected_fault.h"
#include "sharding/world.h"

namespace aliquot {

/// Injects the fault at the first operation that matches, or at all of them (InjectedFault::is_permanent). Used from
/// the rank's own thread. Everything passed must outlive it.
class FaultInjector {
 public:
  struct Parts {
    const Plan& plan;
    const StepMemory& memory;
    const Weights& weights;
    const HostView& view;
    const Updater& updater;
    Device& device;
    int tensor;  // the tensor coordinate of this rank
  };
  FaultInjector(const InjectedFault& fault, const Parts& parts) : fault_(fault), parts_(parts) {}

  /// Enqueues the fault on the lane of the operation, after its waits and before its work.
  void before(Stream& lane, OperationId operation, int64_t step);
  /// Enqueues the fault after the work of the operation. FaultKind::kFlip blocks until the lane is idle.
  void after(Stream& lane, OperationId operation, int64_t step);
  /// Enqueues the fault after a sum over ranks, whose first element is at `sum`, before its digest. `repeats`: whether
  /// the sum is that of another rank, which this rank repeats. Only permanent faults change such sums.
  void after_sum(Stream& lane, OperationId operation, int64_t step, std::byte* sum, bool repeats) const;

 private:
  bool matches(OperationId operation, int64_t step) const;
  std::byte* gradient_of(UnitId unit) const;
  void write_nan_gradient(Stream& lane, UnitId unit) const;
  void flip_result(Stream& lane, std::byte* result) const;
  void flip_bit(Stream& lane, UnitId unit) const;
  std::byte* flipped_byte(int32_t flat, int rank, int64_t shard_offset) const;

  const InjectedFault& fault_;
  Parts parts_;
  bool done_ = false;
  std::string where_;  // text that the enqueued work refers to
};

/// The operations that ALIQUOT_FAULT can name: the verbs of schedules.
const std::vector<FaultPoint>& fault_points();

/// Returns null unless ALIQUOT_FAULT specifies this rank and an operation of the plan. Throws the same UsageError on
/// all ranks if the rank or the operation does not exist, or if the fault would stop the process of all ranks.
std::unique_ptr<FaultInjector> make_fault_injector(World& world, const FaultInjector::Parts& parts);

}  // namespace aliquot
