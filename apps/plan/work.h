#pragma once
// What a model's own code has to compute.

#include <vector>

#include "apps/models/shape.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// By use of parameters_of(shape), of `sequences` of `length` tokens: two operations a parameter and token of products, twice as
/// many backward, and the lower halves of attention's squares; tables are looked up, which costs nothing.
std::vector<UseCost> uses_at(const ModelShape& shape, int64_t sequences, int64_t length, double flops_per_second);

}  // namespace aliquot
