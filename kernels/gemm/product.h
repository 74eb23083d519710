#pragma once
// Matrix products of fp32, bf16 or fp16 matrices on hosts, with sums in fp32. Used by the models, attention and Muon.

#include <cstdint>

#include "kernels/formats/values.h"
#include "kernels/gemm/bf16_products.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

struct ProductLoops;
struct SmallLoops;

/// A row-major matrix whose rows are `stride` elements apart. If `transposed`, the product uses its transpose.
struct Matrix {
  ConstValues data;
  int64_t stride = 0;
  bool transposed = false;
};

/// to = factor * a * b or, if `add`, to += factor * a * b. After transposition `a` is rows x depth and `b` is
/// depth x columns. Both have the same type. `to` must not overlap them.
struct Product {
  Matrix a, b;
  Values to;
  int64_t to_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  float factor = 1.0f;
  bool add = false;
  /// Has product_scratch_elements() elements for each thread of the pool. May be null for fp32 operands and result:
  /// each thread then packs smaller blocks on its stack (about 240 KiB).
  float* scratch = nullptr;
};

/// Returns the size, in fp32 elements, of the scratch memory that one thread needs for a product. `operands` is the
/// type of both operands, and `result` is that of the result.
int64_t product_scratch_elements(DType operands, DType result, Bf16ProductMethod method);

/// Computes the product on all threads of the pool, with SumRounding::kFused and the best loops for this processor.
/// Each thread computes a rectangle of the result over the full depth, so the bits do not depend on the number of
/// threads. fp32 products, and products of widened operands, have the same bits on every processor with fused
/// multiply-add. Throws FaultError if the operands have different types. supports_bf16_product_method(method) must be
/// true.
void multiply(ThreadPool& pool, const Product& product);
void multiply(ThreadPool& pool, const Product& product, Bf16ProductMethod method);

/// Computes a product with the given fp32 loops (kernels/gemm/loops.h). Loops with SumRounding::kSeparate give the same
/// bits on every processor. Throws FaultError if an operand is not fp32, or if such loops get a factor other than 1.
void multiply(ThreadPool& pool, const Product& product, const ProductLoops& loops);

/// Computes an fp32 product on the calling thread, for code that distributes many small products over threads. Operands
/// are not packed, but a transposed b is copied block by block to the stack. The bits of an element do not depend on
/// strides or extents.
void multiply_on_calling_thread(const Product& product);
void multiply_on_calling_thread(const Product& product, const SmallLoops& loops);

}  // namespace aliquot
