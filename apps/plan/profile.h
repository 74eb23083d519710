#pragma once
// What a model's own code takes, from a run of it.

#include <string>
#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// By use, from the step that a run's --metrics file recorded, made as long as the quicker of its steps. A run on one rank has
/// nothing that slows computing down. Throws UsageError for a file that cannot be read, that is of other ranks, sequences or tokens,
/// or that has no such step: with micro-batches or recomputing, uses do not run once forward and once backward.
std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence);

}  // namespace aliquot
