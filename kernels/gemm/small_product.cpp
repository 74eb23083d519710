#include <algorithm>
#include <cstring>

#include "kernels/gemm/loops.h"
#include "kernels/gemm/product.h"

namespace aliquot {
namespace {

// Sums over the depth are computed in blocks of this length, whether b is read in place or copied. So both ways give
// the same bits. A copied block of b takes 64 KiB of stack.
constexpr int64_t kDepthBlock = 256;

// With narrower vectors, 64 columns need several passes over the rows of b, which may be in different memory pages. A
// copy of b is then faster.
constexpr int64_t kMinInPlaceWidth = 16;

struct BlockOfB {
  int64_t column, columns, depth_begin, depth;
};

SmallProduct to_small_product(const Product& p) {
  return {.a = p.a.data.fp32(),
          .a_row_stride = p.a.transposed ? 1 : p.a.stride,
          .a_depth_stride = p.a.transposed ? p.a.stride : 1,
          .b = p.b.data.fp32(),
          .b_stride = p.b.stride,
          .to = p.to.fp32(),
          .to_stride = p.to_stride,
          .rows = p.rows,
          .columns = p.columns,
          .depth = p.depth,
          .factor = p.factor,
          .add = p.add};
}

// Copies a block of b to rows of kSmallColumns elements. Columns beyond the block are zero.
void pack_block(const Product& p, const BlockOfB& block, const SmallLoops& loops, float* to) {
  const float* b = p.b.data.fp32();
  if (p.b.transposed && block.columns == kSmallColumns)
    return loops.transpose(b + block.column * p.b.stride + block.depth_begin, p.b.stride, block.depth, to);
  if (!p.b.transposed && block.columns == kSmallColumns) {
    for (int64_t k = 0; k < block.depth; ++k)
      std::copy_n(b + (block.depth_begin + k) * p.b.stride + block.column, kSmallColumns, to + k * kSmallColumns);
    return;
  }
  for (int64_t k = 0; k < block.depth; ++k) {
    for (int64_t j = 0; j < kSmallColumns; ++j) {
      const int64_t row = block.depth_begin + k, column = block.column + j;
      const int64_t at = p.b.transposed ? column * p.b.stride + row : row * p.b.stride + column;
      to[k * kSmallColumns + j] = j < block.columns ? b[at] : 0.0f;
    }
  }
}

// Computes the block's columns of the product from a packed block of b. If the columns do not fill whole registers,
// uses a temporary block of sums.
void multiply_packed(const Product& p, const BlockOfB& block, const SmallLoops& loops, const float* packed_b) {
  SmallProduct part = to_small_product(p);
  part.a += block.depth_begin * part.a_depth_stride;
  part.b = packed_b;
  part.b_stride = kSmallColumns;
  part.depth = block.depth;
  part.to += block.column;
  part.columns = block.columns;
  part.add = p.add || block.depth_begin > 0;
  if (block.columns % loops.width == 0) return loops.multiply(part);
  constexpr int64_t kRows = 64;
  float sums[kRows * kSmallColumns];
  for (int64_t row = 0; row < p.rows; row += kRows) {
    SmallProduct wide = part;
    wide.rows = std::min(kRows, p.rows - row);
    wide.columns = (block.columns + loops.width - 1) / loops.width * loops.width;
    wide.a += row * part.a_row_stride;
    wide.to = sums;
    wide.to_stride = kSmallColumns;
    float* to = part.to + row * part.to_stride;
    const auto bytes = static_cast<std::size_t>(block.columns) * sizeof(float);
    std::fill_n(sums, wide.rows * kSmallColumns, 0.0f);
    for (int64_t i = 0; part.add && i < wide.rows; ++i)
      std::memcpy(sums + i * kSmallColumns, to + i * part.to_stride, bytes);
    loops.multiply(wide);
    for (int64_t i = 0; i < wide.rows; ++i) std::memcpy(to + i * part.to_stride, sums + i * kSmallColumns, bytes);
  }
}

// Computes columns [begin, end) from blocks of b that are copied to the stack.
void multiply_by_blocks(const Product& p, int64_t begin, int64_t end, const SmallLoops& loops) {
  alignas(64) float packed_b[kDepthBlock * kSmallColumns];
  for (int64_t column = begin; column < end; column += kSmallColumns) {
    int64_t k = 0;
    do {
      const BlockOfB block{column, std::min<int64_t>(kSmallColumns, end - column), k,
                           std::min(kDepthBlock, p.depth - k)};
      pack_block(p, block, loops, packed_b);
      multiply_packed(p, block, loops, packed_b);
    } while ((k += kDepthBlock) < p.depth);
  }
}

// Computes the first `columns` columns and reads b in place.
void multiply_in_place(const Product& p, int64_t columns, const SmallLoops& loops) {
  SmallProduct part = to_small_product(p);
  part.columns = columns;
  int64_t k = 0;
  do {
    part.depth = std::min(kDepthBlock, p.depth - k);
    part.add = p.add || k > 0;
    loops.multiply(part);
    part.a += kDepthBlock * part.a_depth_stride;
    part.b += kDepthBlock * part.b_stride;
  } while ((k += kDepthBlock) < p.depth);
}

}  // namespace

void multiply_on_calling_thread(const Product& p) { multiply_on_calling_thread(p, small_loops()); }

void multiply_on_calling_thread(const Product& p, const SmallLoops& loops) {
  if (p.b.transposed || loops.width < kMinInPlaceWidth) return multiply_by_blocks(p, 0, p.columns, loops);
  const int64_t in_place = p.columns / loops.width * loops.width;
  if (in_place > 0) multiply_in_place(p, in_place, loops);
  if (in_place < p.columns) multiply_by_blocks(p, in_place, p.columns, loops);
}

}  // namespace aliquot
