#pragma once
// Sums of rows in kernels, with a fixed order of addition. For *.cu files.

#include <cstdint>

#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// The sum of term(c) over the columns c of a row, in fp32. Each lane adds columns lane, lane + 32, ...
template <class Term>
__device__ float sum_of_row(int64_t width, const Term& term) {
  float sum = 0.0f;
  for (int64_t c = warp_lane(); c < width; c += kLanesPerWarp) sum += term(c);
  return sum_of_lanes(sum);
}

}  // namespace aliquot::cuda
