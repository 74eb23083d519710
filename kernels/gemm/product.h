#pragma once
// Matrix products on hosts, of fp32, bf16 or fp16 matrices, summed in fp32: the one module for models, attention and Muon.

#include <cstdint>

#include "kernels/formats/values.h"
#include "kernels/gemm/bf16_products.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

struct ProductLoops;
struct SmallLoops;

/// A row-major matrix in memory, `stride` elements from one row to the next, used as it is or transposed.
struct Matrix {
  ConstValues data;
  int64_t stride = 0;
  bool transposed = false;
};

/// to = factor * a * b, or to += factor * a * b. After transposition `a` is rows x depth and `b` is depth x columns. Both have
/// one type. `to` overlaps neither.
struct Product {
  Matrix a, b;
  Values to;
  int64_t to_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  float factor = 1.0f;
  bool add = false;
  /// product_scratch_elements() for each thread of the pool. Null, for fp32 only: each thread packs smaller blocks on its
  /// stack (about 240 KiB).
  float* scratch = nullptr;
};

/// Scratch that one thread needs for products of `operands` into their own type or into `result`, in fp32 elements.
int64_t product_scratch_elements(DType operands, DType result, Bf16ProductMethod method);

/// Computes the product on all threads of the pool, with the fused loops of this processor. Threads take tiles of rows and
/// columns; the depth is never cut between threads. So the bits do not depend on the number of threads. fp32 products, and
/// products of widened operands, have the same bits on every processor with fused multiply-adds. Throws FaultError when the
/// operands have two types. supports_bf16_product_method(method) must be true.
void multiply(ThreadPool& pool, const Product& product);
void multiply(ThreadPool& pool, const Product& product, Bf16ProductMethod method);

/// The same for fp32 operands, with given loops of fp32 (kernels/gemm/loops.h). Loops with SumRounding::kSeparate give the same bits
/// on every processor and take no factor but 1. Throws FaultError otherwise.
void multiply(ThreadPool& pool, const Product& product, const ProductLoops& loops);

/// An fp32 product on the calling thread, for products that are one task of many. Operands are read where they lie; a
/// transposed b is turned in blocks on the stack. Bits do not depend on strides or extents.
void multiply_on_calling_thread(const Product& product);
void multiply_on_calling_thread(const Product& product, const SmallLoops& loops);

}  // namespace aliquot
