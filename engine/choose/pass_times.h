#pragma once
// The times of passes, by which pipeline stages order their transfers.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// Returns how long the passes and the transfers of each virtual stage of `policy` take with the rates of `cost`, in
/// nanoseconds. A backward includes the recomputed forwards of its uses. Transfers run beside compute. Returns nothing
/// for a policy without a pipeline. Throws what pipeline_stages() and check_uses() throw.
StagePassTimes pass_times_of(const ModelSpec& model, const Policy& policy, const Topology& world,
                             const CostModel& cost);

/// Makes plans of one model. What it refers to must outlive it.
struct Planner {
  const ModelSpec& model;
  const Topology& topology;
  const CostModel& cost;
  /// Whether pipeline stages order their transfers by the pass times of `cost`, or by the default times.
  bool timed = true;

  /// Returns plan_pipeline() with these pass times. `policy` must have a cut if it has a pipeline.
  std::vector<Plan> plan(Policy policy) const;
  /// Returns plan_stage() with these pass times.
  Plan plan_stage(Policy policy, int stage) const;

 private:
  void set_pass_times(Policy& policy) const;
};

}  // namespace aliquot
