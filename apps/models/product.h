#pragma once
// Matrix products of the host models, of fp32, bf16 or fp16 matrices, summed in fp32.

#include <cstdint>

#include "apps/models/bf16_products.h"
#include "apps/models/values.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// A matrix in memory, row after row, `stride` elements from one row to the next; used as it stands or transposed.
struct Matrix {
  ConstValues data;
  int64_t stride = 0;
  bool transposed = false;
};

/// to = factor * a * b, or to += factor * a * b. `a` is rows x depth and `b` depth x columns after their transposition, and
/// both are of one type. `to` overlaps neither.
struct Product {
  Matrix a, b;
  Values to;
  int64_t to_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  float factor = 1.0f;
  bool add = false;
  float* scratch = nullptr;  // product_scratch_elements() for each thread of the pool
};

/// Scratch that one thread needs for products of `operands` into their own type or into `result`, in fp32 elements.
int64_t product_scratch_elements(DType operands, DType result, Bf16Products how);

/// Computes the product on all threads of the pool. It is cut into tiles of rows and columns, never along its depth, and each
/// tile is one thread's: the bits do not depend on the number of threads, and each rank of a process has threads of its own.
/// In fp32, and where operands are widened, they are those of any processor that fuses multiplications and additions. Throws
/// FaultError when the operands are of two types. For `how`,
/// has_bf16_products() was asked, and said yes.
void multiply(ThreadPool& pool, const Product& product);
void multiply(ThreadPool& pool, const Product& product, Bf16Products how);

/// On the calling thread, in one piece, fp32 alone, by oneDNN: for products small enough to be a task of their own. Throws
/// FaultError when oneDNN refuses.
void multiply_here(const Product& product);

}  // namespace aliquot
