#pragma once
// The computation time of each use of a model, estimated or measured in a run.

#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "apps/plan/machine.h"

namespace aliquot {

/// Estimates the time of each use of the model that parameters_of(shape) returns, for `sequences` sequences of `length`
/// tokens. Forward counts 2 operations per token and matrix element, and the causal half of attention. In blocks with a
/// sliding window, it counts only the keys in the window. Backward takes twice as long if no matrix is frozen, and its
/// second part, if split, computes only the gradients of matrices. Table look-ups take no time.
std::vector<UseCost> estimate_use_costs(const ModelShape& shape, int64_t sequences, int64_t length,
                                        double flops_per_second);

/// Reads the time of each use from the recorded step of a --metrics file, scaled to the 25th percentile of the step
/// times. The run must have had one rank, so that communication does not slow down computation. Throws UsageError if
/// the file cannot be read, was recorded with another number of ranks, --micro-batch or --sequence, or has no recorded
/// step with exactly one forward and one backward of each use. So runs with --accumulate or --recompute are rejected.
std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence);

/// The sequences of a micro-batch of a rank, and the number of ranks that divide its computation.
struct MicroBatch {
  int64_t sequences, length;
  int tensor = 1;
};

/// Returns the machine's rates and the estimated times of the uses of a model.
CostModel cost_of(const Machine& machine, const ModelShape& shape, const MicroBatch& batch);

/// Replaces the times of the uses by those that read_profile() returns, divided by `batch.tensor`, as if the ranks
/// divided all work. A profile has only whole backward passes, so UseCost::backward_input_seconds becomes the same part
/// of the backward as in the replaced times.
void apply_profile(CostModel& cost, const std::string& path, const MicroBatch& batch);

}  // namespace aliquot
