#pragma once
// The innermost loops of matrix products, on one thread, in fp32: operands are laid out first as the registers want them, in
// slivers, which are a few rows of a (or columns of b), one step of the depth after the other.

#include <cstdint>

#include "kernels/host_loops.h"

namespace aliquot {

/// `count` rows of a, or columns of b, `depth` deep. (i, k) lies at i * stride + k, or, where `along`, at k * stride + i.
struct Strip {
  const float* data = nullptr;
  int64_t stride = 0;
  bool along = false;
  int64_t count = 0, depth = 0;
};

/// to = or += factor * a * b, of operands in slivers. `to` is rows x columns, `stride` from one row to the next.
struct SliverProduct {
  const float *a = nullptr, *b = nullptr;
  int64_t rows = 0, columns = 0, depth = 0;
  float* to = nullptr;
  int64_t stride = 0;
  float factor = 1.0f;
  bool add = false;
};

/// Sums go up along the depth, from zero, a fused multiplication and addition a step where the processor has such: the bits
/// of an element depend on nothing but its row of a and its column of b. Slivers are filled up with zeros.
struct ProductLoops {
  int64_t a_width, b_width;  // of a sliver
  void (*lay_out_a)(const Strip&, float* to);
  void (*lay_out_b)(const Strip&, float* to);
  void (*multiply)(const SliverProduct&);
};

/// Those of one kind of processor, which this one must be; and those of the best kind that it is.
const ProductLoops& product_loops(Isa isa);
const ProductLoops& product_loops();

// One a source file; for the two above alone.
const ProductLoops& product_loops_plain();
const ProductLoops& product_loops_avx2();
const ProductLoops& product_loops_avx512();

}  // namespace aliquot
