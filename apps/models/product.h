#pragma once
// Matrix products of the host models, by oneDNN.

#include <cstdint>

#include "kernels/thread_pool.h"

namespace aliquot {

/// A matrix in memory, row after row, `stride` elements from one row to the next; used as it stands or transposed.
struct Matrix {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

/// to = factor * a * b, or to += factor * a * b. `a` is rows x depth and `b` depth x columns after their transposition.
/// `to` overlaps neither.
struct Product {
  Matrix a, b;
  float* to = nullptr;
  int64_t to_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  float factor = 1.0f;
  bool add = false;
};

/// Computes the product on all threads of the pool. It is cut into tiles of rows and columns by its extents alone,
/// never along its depth, and each tile is one call of oneDNN on one thread: the bits do not depend on the number of
/// threads, and each rank of a process has threads of its own. Throws FaultError when oneDNN refuses.
void multiply(ThreadPool& pool, const Product& product);

/// The same on the calling thread, in one piece: for products small enough to be a task of their own.
void multiply_here(const Product& product);

}  // namespace aliquot
