#pragma once
// Optimizer updates of the parameters of a plan.

#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/weights.h"
#include "engine/run/state_digests.h"
#include "kernels/device/device.h"
#include "optim/optimizer.h"
#include "optim/update/update.h"

namespace aliquot {

/// The parameters of a step's updates: `elements` for elementwise updates, `blend` and `apply` for the matrices of Muon
/// before and after orthogonalization.
struct UpdateSteps {
  UpdateStep elements, blend, apply;
  bool resets_residual = false;  // clear error-feedback residuals, because of a skipped step or a new loss scale
};

/// Enqueues the fused updates of flat buffers. The plan, memory and weights must outlive it.
class Updater {
 public:
  struct Parts {
    const Plan& plan;
    const StepMemory& memory;
    const Weights& weights;
    const HostView& view;
    const StateDigests& digests;
    int rank;    // in the shard group
    int tensor;  // the tensor coordinate
  };
  Updater(const Parts& parts, const Optimizer& optimizer, DType moments);

  /// Enqueues the update of all flat buffers of `unit` on `lane`.
  void update(Stream& lane, UnitId unit, const UpdateSteps& steps);
  /// Enqueues kMuonMomentum for a flat buffer. It updates the momentum, and computes the matrices to orthogonalize.
  void muon_momentum(Stream& lane, int32_t flat, const UpdateSteps& steps);

  /// Returns the address between steps of an optimizer state of a flat buffer. `state` is an index into states(). The
  /// memory has all elements at ZeRO stage 0, and otherwise the elements of this rank's shard.
  std::byte* state(int32_t flat, std::size_t state) const;
  /// The number of this rank in the shard group.
  int rank() const { return rank_; }
  const std::vector<StateSpec>& states(int32_t flat) const {
    return plan_.flats[flat].matrices ? matrix_states_ : states_;
  }

 private:
  std::vector<Segment> segments_of(int32_t flat, int first_rank, int last_rank) const;
  const std::byte* gradient(int32_t flat) const;
  int64_t state_offset(int32_t flat, std::size_t state) const;
  UpdateArgs constant_args(int32_t flat, const Parts& parts);
  void bind_states(int32_t flat);
  void bind_segments(UpdateArgs& args, int32_t flat) const;

  const Plan& plan_;
  const StepMemory& memory_;
  const Weights& weights_;
  const StateDigests& digests_;
  const UpdateKernels& kernels_;
  std::vector<StateSpec> states_, matrix_states_;
  int rank_, tensor_;
  /// The index of each parameter in the order of names, at first_of_unit_ + parameter.
  std::vector<int32_t> parameter_name_order_;
  std::vector<int32_t> first_of_unit_;
  std::vector<std::vector<Segment>> segments_;  // segments of each flat buffer
  std::vector<UpdateArgs> args_;   // arguments of each flat buffer's update; for matrices, of kMuonMomentum
  std::vector<UpdateArgs> apply_;  // for flat buffers of matrices: arguments of the update
};

}  // namespace aliquot
