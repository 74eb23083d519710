#pragma once
// The optimizer updates of a plan.

#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/weights.h"
#include "kernels/device/device.h"
#include "optim/optimizer.h"
#include "optim/update/update.h"

namespace aliquot {

/// The parameters of all updates of a step: of elements, and of whole matrices before and after orthogonalization.
struct UpdateSteps {
  UpdateStep elements, blend, apply;
  bool resets_residual = false;  // clear error-feedback residuals: the step is skipped, or the loss scale changes
};

/// Enqueues the fused updates of flats. The plan, memory and weights must outlive it.
class Updater {
 public:
  struct Parts {
    const Plan& plan;
    const StepMemory& memory;
    const Weights& weights;
    const HostView& view;
    int rank;
  };
  Updater(const Parts& parts, const Optimizer& optimizer, DType moments);

  /// Enqueues the update of all flats of `unit` on `lane`.
  void update(Stream& lane, UnitId unit, const UpdateSteps& steps);
  /// Enqueues kMuonMomentum for a flat: updates the momentum, and computes the matrices to orthogonalize.
  void muon_momentum(Stream& lane, int32_t flat, const UpdateSteps& steps);

  /// The address of optimizer state `state` of the flat between steps: of the own shard, or of all elements at ZeRO
  /// stage 0.
  std::byte* state(int32_t flat, std::size_t state) const;
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
  const UpdateKernels& kernels_;
  std::vector<StateSpec> states_, matrix_states_;
  int rank_;
  std::vector<int32_t> parameter_name_order_;  // by first_of_unit_ + parameter: index in the order of names
  std::vector<int32_t> first_of_unit_;
  std::vector<std::vector<Segment>> segments_;  // by flat
  std::vector<UpdateArgs> args_;                // arguments of each flat; for matrices, those of the momentum
  std::vector<UpdateArgs> apply_;               // for flats of matrices: arguments of the update
};

}  // namespace aliquot
