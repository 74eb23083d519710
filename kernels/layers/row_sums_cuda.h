#pragma once
// Sums of rows and of columns in kernels, with a fixed order of addition. For *.cu files.

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

/// A thread block sums kColumns columns. Each thread adds every kRowsAtOnce-th row of one column; then a tree adds the
/// threads' sums, in a fixed order.
inline constexpr int kColumns = 16, kColumnThreads = 1024, kRowsAtOnce = kColumnThreads / kColumns;

__device__ inline float sum_of_column(float (*parts)[kColumns], float own) {
  const int column = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  __syncthreads();  // all threads have read the result of the previous call
  parts[part][column] = own;
  for (int half = kRowsAtOnce / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part < half) parts[part][column] += parts[part + half][column];
  }
  return parts[0][column];  // only the threads of part 0 have the sum
}

template <class To>
__device__ void put_column(typename To::Storage* to, float sum, bool add) {
  *to = To::store(add ? To::load(*to) + sum : sum);
}

inline Grid columns_grid(int64_t width) {
  return {static_cast<unsigned>((width + kColumns - 1) / kColumns), kColumnThreads};
}

}  // namespace aliquot::cuda
