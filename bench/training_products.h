#pragma once
// The matrix products of a training step alone, as a lower bound for its time.

#include "kernels/formats/dtype.h"

namespace aliquot {

/// Runs the matrix products of one step of GPT-2 124M, forward and backward, for `sequence` tokens per rank. One thread
/// for each of `rank_count` ranks runs them concurrently. Returns the seconds of the slowest thread. Excludes the
/// products inside attention.
double seconds_of_products(DType compute, int rank_count, int sequence);

}  // namespace aliquot
