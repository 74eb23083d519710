#pragma once
// Matrix products for optimizers, whose bits depend on nothing but the factors. For optim's own sources and tests.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// A row-major matrix whose rows lie one after the other.
struct ConstMatrix {
  const float* data;
  int64_t rows, columns;
};

/// to[i][j] = ((0 + a[i][0] b[0][j]) + a[i][1] b[1][j]) + ..., each operation rounded once; `to` overlaps neither.
void multiply(float* to, const ConstMatrix& a, const ConstMatrix& b, Isa isa, ThreadPool& pool);

/// to[j][i] = a[i][j].
void transpose(float* to, const ConstMatrix& a, ThreadPool& pool);

}  // namespace aliquot
