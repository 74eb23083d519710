#pragma once
// The sum of the losses of rows. For *.cu files.

#include <cmath>
#include <cstdint>

#include "kernels/device/launch_cuda.h"
#include "kernels/layers/row_statistics.h"

namespace aliquot::cuda {

inline constexpr int kRowLossThreads = 256;

struct RowLosses {
  float* log_sums = nullptr;
  const int32_t* targets = nullptr;
  int64_t count = 0;
  double* sum = nullptr;
};

/// Runs in one thread block. Each thread adds consecutive rows from first to last; then a tree adds the threads' sums.
/// statistics(row) returns the RowStatistics of a row.
template <class Statistics>
__global__ void __launch_bounds__(kRowLossThreads) reduce_row_losses(const Statistics statistics, const RowLosses a) {
  __shared__ double parts[kRowLossThreads];
  const int64_t begin = a.count * threadIdx.x / kRowLossThreads, end = a.count * (threadIdx.x + 1) / kRowLossThreads;
  double own = 0;
  for (int64_t row = begin; row < end; ++row) own += row_loss(statistics(row), a.targets[row], a.log_sums + row);
  parts[threadIdx.x] = own;
  for (unsigned half = 1; half < kRowLossThreads; half *= 2) {
    __syncthreads();
    if (threadIdx.x % (2 * half) == 0) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *a.sum = parts[0];
}

template <class Statistics>
void sum_row_losses(Stream& stream, const Statistics& statistics, const RowLosses& losses) {
  start_kernel(stream, "sum of row losses", {1, kRowLossThreads}, reduce_row_losses<Statistics>, statistics, losses);
}

}  // namespace aliquot::cuda
