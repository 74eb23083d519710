#pragma once
// The innermost loops of matrix products, on one thread, summed in fp32. Operands are packed first into slivers: a few rows
// of a, or a few columns of b, one step of the depth after the other, as the registers take them.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/dtype.h"
#include "kernels/gemm/bf16_products.h"

namespace aliquot {

/// `count` rows of a, or columns of b, `depth` deep, of the type that the loops take. (i, k) lies at i * stride + k, or,
/// where `depth_major`, at k * stride + i.
struct OperandStrip {
  const void* data = nullptr;
  int64_t stride = 0;
  bool depth_major = false;
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

/// How a sum of products in fp32 is rounded.
/// kFused: each step is one fused multiply-add where the processor has it. A call sums from zero and adds the sum to `to`.
/// kSeparate: ((to + a0 b0) + a1 b1) + ..., each operation rounded once: the same bits on every processor and on GPUs. The
/// factor must be 1.
enum class SumRounding : uint8_t { kFused, kSeparate };

/// The bits of an element depend only on its row of a and its column of b, not on strides or extents. Sums run up along the
/// depth. Products of bf16 are summed as the instructions sum, which treat subnormal operands, products and sums as zero.
/// Slivers are padded with zeros.
struct ProductLoops {
  DType operands;            // kFloat32 or kBFloat16
  SumRounding sums;          // for bf16 kFused; the instructions determine the rounding
  int64_t a_width, b_width;  // of a sliver
  void (*pack_a)(const OperandStrip&, void* to);
  void (*pack_b)(const OperandStrip&, void* to);
  void (*multiply)(const SliverProduct&);
};

/// to = or += factor * a * b in fp32, of operands as they lie. a(i, k) lies at i * a_row_stride + k * a_depth_stride, b(k, j) at
/// k * b_stride + j. Sums run up along the whole depth, from zero, fused as ProductLoops' are.
struct SmallProduct {
  const float* a = nullptr;
  int64_t a_row_stride = 0, a_depth_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  float factor = 1.0f;
  bool add = false;
};

/// Columns of a block of b that is transposed first.
inline constexpr int kSmallColumns = 64;

struct SmallLoops {
  int64_t width;  // what columns must be a multiple of
  void (*multiply)(const SmallProduct&);
  /// kSmallColumns rows of `depth` elements, `stride` apart, become `depth` rows of kSmallColumns.
  void (*transpose)(const float* from, int64_t stride, int64_t depth, float* to);
};

/// The loops for small fp32 products of the best instruction set of this processor, and of a given one.
const SmallLoops& small_loops();
const SmallLoops& small_loops(Isa isa);

/// The fp32 loops of one instruction set, which this processor must have. With kFused, AVX2 needs FMA too.
const ProductLoops& product_loops(Isa isa, SumRounding sums = SumRounding::kFused);
/// The fp32 loops of the best instruction set of this processor.
const ProductLoops& product_loops(SumRounding sums = SumRounding::kFused);
/// The loops for operands of bf16. supports_bf16_product_method(method) must be true. kWidened gives the fp32 loops.
const ProductLoops& product_loops(Bf16ProductMethod method);

// One a source file; for the functions above only.
const ProductLoops& product_loops_plain(SumRounding sums);
const ProductLoops& product_loops_avx2(SumRounding sums);
const ProductLoops& product_loops_avx512(SumRounding sums);
const SmallLoops& small_loops_plain();
const SmallLoops& small_loops_avx2();
const SmallLoops& small_loops_avx512();
const ProductLoops& product_loops_avx512_bf16();
const ProductLoops& product_loops_amx();

}  // namespace aliquot
