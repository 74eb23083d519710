#pragma once
// What a model's own code costs, use by use: computed, or measured by a run.

#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// By use of parameters_of(shape), of `sequences` of `length` tokens: two operations a parameter and token of products, twice as
/// many backward, and the lower halves of attention's squares; tables are looked up, which costs nothing.
std::vector<UseCost> estimate_use_costs(const ModelShape& shape, int64_t sequences, int64_t length,
                                        double flops_per_second);

/// By use, from the step that a run's --metrics file recorded, made as long as the quicker of its steps. A run on one rank has
/// nothing that slows computing down. Throws UsageError for a file that cannot be read, that is of other ranks, sequences or tokens,
/// or that has no such step: with micro-batches or recomputing, uses do not run once forward and once backward.
std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence);

}  // namespace aliquot
