#pragma once
// The optimizer over the shards of a plan.

#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/weights.h"
#include "kernels/device/device.h"
#include "optim/optimizer.h"
#include "optim/update/update.h"

namespace aliquot {

/// What all updates of a step do: of elements, and of whole matrices before and after they are made orthogonal.
struct UpdateSteps {
  UpdateStep elements, blend, apply;
  bool resets_residual =
      false;  // what rounding gradients left is not for the next step: skipped, or of another loss scale
};

/// Where every flat's weights, states and segments are, for the fused update. The plan, memory and weights must outlive it.
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
  /// Of the matrices of a flat: their momentum, and what is to be made orthogonal.
  void muon_momentum(Stream& lane, int32_t flat, const UpdateSteps& steps);

  /// State `state` of the flat between steps: of the own shard, at stage 0 of the whole.
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
  std::vector<int32_t> parameter_name_order_;  // by unit's first parameter + index: place in the order of names
  std::vector<int32_t> first_of_unit_;
  std::vector<std::vector<Segment>> segments_;  // by flat
  std::vector<UpdateArgs> args_;                // by flat; of matrices: of the blend
  std::vector<UpdateArgs> apply_;               // by flat, of matrices
};

}  // namespace aliquot
