#pragma once
// The innermost loops of matrix products, on one thread, with sums in fp32. Operands are first packed into slivers. A
// sliver holds a few rows of the left operand `a`, or a few columns of the right operand `b`. Its elements are in the
// order in which registers load them: all elements of one depth index, then those of the next. The depth is the
// dimension over which a product sums.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/dtype.h"
#include "kernels/gemm/bf16_products.h"

namespace aliquot {

/// `count` rows of `a`, or columns of `b`, with `depth` elements each. Element k of row or column i is at
/// i * stride + k or, if `depth_major`, at k * stride + i. `type` is ProductLoops::operands. It may also be kBFloat16
/// for fp32 loops, which convert the elements.
struct OperandStrip {
  const void* data = nullptr;
  int64_t stride = 0;
  bool depth_major = false;
  int64_t count = 0, depth = 0;
  DType type = DType::kFloat32;
};

/// A strip of `b` with exactly ProductLoops::b_width columns, which is packed to `to`.
struct PackAhead {
  OperandStrip strip;
  void* to = nullptr;
};

/// to = factor * a * b or, if `add`, to += factor * a * b, with packed operands. `to` has rows x columns elements, and
/// its rows are `stride` elements apart. If ahead.to is not null, multiply() also packs ahead.strip, which must not
/// overlap the operands of the product. Only for loops with packs_ahead.
struct SliverProduct {
  const void *a = nullptr, *b = nullptr;
  int64_t rows = 0, columns = 0, depth = 0;
  float* to = nullptr;
  int64_t stride = 0;
  float factor = 1.0f;
  bool add = false;
  PackAhead ahead = {};
};

/// The rounding of a sum of products in fp32.
enum class SumRounding : uint8_t {
  /// Uses fused multiply-adds if the processor has them. Each call sums from zero, and then adds the sums to `to`.
  kFused,
  /// Computes ((to + a0 b0) + a1 b1) + ... and rounds each operation, so all processors and GPUs give the same bits.
  /// The factor must be 1.
  kSeparate,
};

/// Functions that pack and multiply slivers. The bits of a result element depend only on its row of `a` and its column
/// of `b`, not on strides or extents. Products are added in ascending order of the depth index. For bf16, the
/// instructions determine rounding, and subnormal operands, products and sums count as zero. Slivers are padded with
/// zeros.
struct ProductLoops {
  DType operands;            // kFloat32 or kBFloat16
  SumRounding sums;          // always kFused for bf16 operands
  int64_t a_width, b_width;  // number of rows in a sliver of `a`, and of columns in a sliver of `b`
  void (*pack_a)(const OperandStrip&, void* to);
  void (*pack_b)(const OperandStrip&, void* to);
  void (*multiply)(const SliverProduct&);
  bool packs_ahead = false;
};

/// to = factor * a * b or, if `add`, to += factor * a * b, in fp32 and without packing. a(i, k) is at
/// i * a_row_stride + k * a_depth_stride, and b(k, j) at k * b_stride + j. Each element is summed from zero in
/// ascending order of k, with SumRounding::kFused.
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

/// The number of columns in a copied block of b.
inline constexpr int kSmallColumns = 64;

struct SmallLoops {
  int64_t width;  // SmallProduct::columns must be a multiple of `width`
  void (*multiply)(const SmallProduct&);
  /// Transposes kSmallColumns rows of `depth` elements, which are `stride` apart, to `depth` rows of kSmallColumns
  /// elements.
  void (*transpose)(const float* from, int64_t stride, int64_t depth, float* to);
};

/// Return the loops for small fp32 products, for the best instruction set of this processor or for a given one.
const SmallLoops& small_loops();
const SmallLoops& small_loops(Isa isa);

/// Returns the fp32 loops of one instruction set, which this processor must have. For kAvx2 with kFused, it must also
/// have FMA.
const ProductLoops& product_loops(Isa isa, SumRounding sums = SumRounding::kFused);
/// Returns the fp32 loops of the best instruction set of this processor.
const ProductLoops& product_loops(SumRounding sums = SumRounding::kFused);
/// Returns the loops for bf16 operands. supports_bf16_product_method(method) must be true. For kWidened, returns the
/// fp32 loops.
const ProductLoops& product_loops(Bf16ProductMethod method);

// Each loops_*.cpp file defines the functions of one instruction set. Callers use the functions above, which select an
// instruction set.
const ProductLoops& product_loops_plain(SumRounding sums);
const ProductLoops& product_loops_avx2(SumRounding sums);
const ProductLoops& product_loops_avx512(SumRounding sums);
const SmallLoops& small_loops_plain();
const SmallLoops& small_loops_avx2();
const SmallLoops& small_loops_avx512();
const ProductLoops& product_loops_avx512_bf16();
const ProductLoops& product_loops_amx();

}  // namespace aliquot
