#pragma once
// The matrix products of a training step and nothing else: the floor under its time.

#include "kernels/formats/dtype.h"

namespace aliquot {

/// Seconds that `rank_count` ranks of one thread each take, side by side, for the products of one step of GPT-2 124M, forward
/// and backward, of `sequence` tokens each. Those of attention are left out.
double seconds_of_products(DType compute, int rank_count, int sequence);

}  // namespace aliquot
