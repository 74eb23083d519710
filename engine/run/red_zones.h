#pragma once
// What lies around the memory that a model is handed, where the policy checks.

#include <memory>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/memory/weights.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Fills the padding of the parameters that this rank holds, for good: with NaN, so that reading too far shows, but with
/// zeros where whole blocks are quantised. Between steps.
void fill_red_zones_of_values(const Plan& plan, const Weights& weights, const HostView& view);

/// Fills the red zones of gradients and activations when a use opens, and compares those of all that the use has when
/// it closes. Those of parameters are there already. Used from the rank's own thread; all it is given must
/// outlive it.
class RedZones {
 public:
  RedZones(const Plan& plan, const StepMemory& memory, const Device& device);

  /// On the lane where the operation's code runs, before it.
  void fill(Stream& compute, OperationId operation) const;
  /// After it. Throws UsageError, or its lane does, naming the use, the tensor and the element that was written.
  void compare(Stream& compute, OperationId operation) const;

 private:
  struct Zone {
    std::byte* at;
    int64_t size_bytes;
    std::byte expected;
    bool begins;  // with this operation
    Role role;
    int32_t whose;  // flat, or use
    Gap gap;        // of a flat
  };

  std::vector<Zone> zones(OperationId operation) const;
  void add_gaps(std::vector<Zone>& zones, int32_t flat, Role role) const;
  void add_activations(std::vector<Zone>& zones, OperationId operation) const;
  void compare(const Zone& zone, const std::byte* bytes, OperationId operation) const;
  std::string defect(const Zone& zone, int64_t first_byte, int64_t last_byte) const;

  const Plan& plan_;
  const StepMemory& memory_;
  const Device& device_;
  std::vector<std::vector<Gap>> gaps_;  // by flat
};

}  // namespace aliquot
