#pragma once
// Red zones of the checking mode: padding with a known pattern, so that writes to it are detected.

#include <memory>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/memory/weights.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Fills the padding of this rank's parameters, once. The pattern is NaN, so that a read beyond the end affects the
/// result. If weights are quantized, it is zero, because quantized blocks include padding. Call between steps.
/// `coordinate`: the tensor coordinate of this rank.
void fill_red_zones_of_values(const Plan& plan, const Weights& weights, const HostView& view, int coordinate);

/// Fills the red zones of gradients and activations when a use opens. Checks all red zones of the use when it closes,
/// including those of parameters. Used from the rank's own thread. Everything passed must outlive it.
class RedZones {
 public:
  /// `coordinate`: the tensor coordinate of this rank.
  RedZones(const Plan& plan, const StepMemory& memory, const Device& device, int coordinate);

  /// Call before the model code of the operation is enqueued on the same lane.
  void fill(Stream& compute, OperationId operation) const;
  /// Fills the red zone of a buffer that is received from another pipeline stage. Call during the receive, on its lane.
  void fill_received(Stream& lane, Role role, int32_t whose) const;
  /// Call after the model code is enqueued. If a red zone was written, this function or the lane throws UsageError,
  /// which names the use, the tensor and the element.
  void compare(Stream& compute, OperationId operation) const;

 private:
  struct Zone {
    std::byte* at;
    int64_t size_bytes;
    std::byte expected;
    bool begins;  // whether the buffer begins with this operation, so the zone must be filled
    Role role;
    int32_t whose;  // PlannedBuffer::flat
    Gap gap;        // position in the flat buffer, for parameters and gradients
  };

  std::vector<Zone> zones(OperationId operation) const;
  void add_gaps(std::vector<Zone>& zones, int32_t flat, Role role) const;
  void add_activations(std::vector<Zone>& zones, OperationId operation) const;
  Zone activation_zone(BufferId buffer) const;
  void compare(const Zone& zone, const std::byte* bytes, OperationId operation) const;
  std::string defect(const Zone& zone, int64_t first_byte, int64_t last_byte) const;

  const Plan& plan_;
  const StepMemory& memory_;
  const Device& device_;
  int coordinate_;
  std::vector<std::vector<Gap>> gaps_;  // for each flat buffer, the result of slice_gaps()
};

}  // namespace aliquot
