#pragma once
// The optimizer over the shards of a plan.

#include <vector>

#include "engine/host_view.h"
#include "engine/weights.h"
#include "kernels/device.h"
#include "optim/optimizer.h"
#include "optim/update.h"

namespace aliquot {

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
  void update(Stream& lane, UnitId unit, const UpdateStep& step);

  /// State `state` of the flat between steps: of the own shard, at stage 0 of the whole.
  std::byte* state(int32_t flat, std::size_t state) const;
  const std::vector<StateSpec>& states() const { return states_; }

 private:
  std::vector<Segment> segments_of(int32_t flat, int first_rank, int last_rank) const;
  const std::byte* gradient(int32_t flat) const;
  int64_t updated_count(int32_t flat) const;
  int64_t state_offset(int32_t flat, std::size_t state) const;
  void take_addresses(int32_t flat);

  const Plan& plan_;
  const StepMemory& memory_;
  const Weights& weights_;
  const UpdateKernels& kernels_;
  std::vector<StateSpec> states_;
  int rank_;
  std::vector<int32_t> number_of_parameter_;  // by unit's first parameter + index: place in the order of names
  std::vector<int32_t> first_of_unit_;
  std::vector<std::vector<Segment>> segments_;  // by flat
  std::vector<UpdateArgs> args_;                // by flat
};

}  // namespace aliquot
