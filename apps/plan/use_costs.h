#pragma once
// The computation time of each use of a model, estimated or measured in a run.

#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// Estimates the time of each use of the model that parameters_of(shape) returns, for `sequences` sequences of `length`
/// tokens. Forward counts 2 operations per token and matrix element, and the causal half of attention. In blocks with a
/// sliding window, it counts only the keys in the window. Backward takes twice as long, and its second part, if split,
/// computes only the gradients of matrices. Table look-ups take no time.
std::vector<UseCost> estimate_use_costs(const ModelShape& shape, int64_t sequences, int64_t length,
                                        double flops_per_second);

/// Sets UseCost::backward_input_seconds of measured times, so that it is the same part of the whole backward as in
/// `estimated`. A profile has only whole backward passes.
void split_backward(std::vector<UseCost>& measured, const std::vector<UseCost>& estimated);

/// Reads the time of each use from the recorded step of a --metrics file, scaled to the 25th percentile of the step
/// times. The run must have had one rank, so that communication does not slow down computation. Throws UsageError if
/// the file cannot be read, was recorded with another number of ranks, --micro-batch or --sequence, or has no recorded
/// step with exactly one forward and one backward of each use. So runs with --accumulate or --recompute are rejected.
std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence);

}  // namespace aliquot
