#pragma once
// The innermost loops of matrix products, on one thread, summed in fp32: operands are laid out first as the registers want
// them, in slivers, which are a few rows of a (or columns of b), one step of the depth after the other.

#include <cstdint>

#include "apps/models/bf16_products.h"
#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// `count` rows of a, or columns of b, `depth` deep, of the type that the loops take. (i, k) lies at i * stride + k, or,
/// where `along`, at k * stride + i.
struct Strip {
  const void* data = nullptr;
  int64_t stride = 0;
  bool along = false;
  int64_t count = 0, depth = 0;
};

/// to = or += factor * a * b, of operands in slivers. `to` is rows x columns, `stride` from one row to the next.
struct SliverProduct {
  const void *a = nullptr, *b = nullptr;
  int64_t rows = 0, columns = 0, depth = 0;
  float* to = nullptr;
  int64_t stride = 0;
  float factor = 1.0f;
  bool add = false;
};

/// The bits of an element depend on nothing but its row of a and its column of b, whatever their strides and extents. In fp32
/// sums go up along the depth, from zero, a fused multiplication and addition a step where the processor has such. In bf16
/// they do as the instructions do, for which subnormal operands, products and sums are zero. Slivers are filled up with zeros.
struct ProductLoops {
  DType operands;            // kFloat32 or kBFloat16
  int64_t a_width, b_width;  // of a sliver
  void (*lay_out_a)(const Strip&, void* to);
  void (*lay_out_b)(const Strip&, void* to);
  void (*multiply)(const SliverProduct&);
};

/// Those in fp32 of one kind of processor, which this one must be; and those of the best kind that it is.
const ProductLoops& product_loops(Isa isa);
const ProductLoops& product_loops();
/// Those that multiply operands of bf16 in a way for which has_bf16_products() was asked, and said yes: for kWidened, in fp32.
const ProductLoops& product_loops(Bf16Products how);

// One a source file; for the three above alone.
const ProductLoops& product_loops_plain();
const ProductLoops& product_loops_avx2();
const ProductLoops& product_loops_avx512();
const ProductLoops& product_loops_avx512_bf16();
const ProductLoops& product_loops_amx();

}  // namespace aliquot
