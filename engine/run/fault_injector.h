#pragma once
// Where a staged fault meets the operations of a step.

#include <memory>
#include <string>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/memory/weights.h"
#include "kernels/system/injected_fault.h"
#include "sharding/world.h"

namespace aliquot {

/// Strikes once, at the first operation that the fault is for. Used from the rank's own thread; what it is given must
/// outlive it.
class FaultInjector {
 public:
  struct Parts {
    const Plan& plan;
    const StepMemory& memory;
    const Weights& weights;
    const HostView& view;
    Device& device;
  };
  FaultInjector(const InjectedFault& fault, const Parts& parts) : fault_(fault), parts_(parts) {}

  /// On the operation's lane, before its work and after what it waits for.
  void before(Stream& lane, OperationId operation, int64_t step);
  /// After its work. A flip waits for the lane.
  void after(Stream& lane, OperationId operation, int64_t step);

 private:
  bool matches(OperationId operation, int64_t step) const;
  void write_nan_gradient(Stream& lane, UnitId unit) const;
  void flip_bit(Stream& lane, UnitId unit) const;

  const InjectedFault& fault_;
  Parts parts_;
  bool done_ = false;
  std::string where_;  // outlives the work that names it
};

/// The verbs of schedules, as ALIQUOT_FAULT has them.
const std::vector<FaultPoint>& fault_points();

/// Null unless ALIQUOT_FAULT is for this rank and an operation of the plan. Throws UsageError, the same on all ranks, where
/// the world has no such rank, the plan no such operation, or a rank that is a thread would stop its whole process.
std::unique_ptr<FaultInjector> make_fault_injector(World& world, const FaultInjector::Parts& parts);

}  // namespace aliquot
