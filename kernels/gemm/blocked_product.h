#pragma once
// A matrix product with an fp32 result on one thread, which packs and multiplies blocks of its operands.

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/loops.h"
#include "kernels/gemm/product.h"

namespace aliquot {

/// The depth of a block. The loops sum each block from zero, so it determines the bits of a product.
inline constexpr int64_t kBlockDepth = 384;
/// Rows and columns that are packed at once begin at multiples of these numbers, which are multiples of the sliver
/// widths of all loops.
inline constexpr int64_t kRowMultiple = 16, kColumnMultiple = 48;
/// fp32 elements of memory with which the fp32 loops can compute any product.
inline constexpr int64_t kMinPackedElements = kBlockDepth * (64 + 2 * kColumnMultiple);
/// fp32 elements of memory in which operands are converted to fp32.
inline constexpr int64_t kConvertedElements = kBlockDepth * kColumnMultiple;

constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

/// Returns the number of lanes of a packed row or column (see loops.h) with the depth of a block or less.
constexpr int64_t packed_lanes(const ProductLoops& loops, int64_t depth) {
  constexpr int64_t kMostPadding = 16;
  const int64_t block = std::min(depth, kBlockDepth);
  return loops.operands == DType::kFloat32 ? block : round_up((block + 1) / 2, kMostPadding);
}

/// Returns the number of columns in a strip of `b`, which is packed at once. Loops that pack ahead need two strips.
constexpr int64_t strip_columns(const ProductLoops& loops) {
  return loops.packs_ahead ? loops.b_width : 4 * kColumnMultiple;
}
constexpr int64_t packed_columns(const ProductLoops& loops) {
  return (loops.packs_ahead ? 2 : 1) * strip_columns(loops);
}

/// Memory of a product by blocks, of at least kMinPackedElements. `converted` has kConvertedElements. It may be null if
/// the loops accept the type of the operands (packs()).
struct BlockMemory {
  float* packed = nullptr;
  int64_t packed_elements = 0;
  float* converted = nullptr;
};

/// Whether the loops pack elements of the type without conversion.
constexpr bool packs(const ProductLoops& loops, DType type) {
  return type == loops.operands || (type == DType::kBFloat16 && loops.operands == DType::kFloat32);
}

/// Returns the part of the matrix, after transposition, that begins at `row` and `column`.
Matrix part_of(const Matrix& m, int64_t row, int64_t column);

/// Computes the product on the calling thread.
void multiply_by_blocks(const Product& p, const ProductLoops& loops, const BlockMemory& memory);

}  // namespace aliquot
