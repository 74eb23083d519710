#include "kernels/gemm/product.h"

#include <algorithm>
#include <string>

#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/loops.h"
#include "kernels/system/error.h"
#include "kernels/system/parallel.h"

namespace aliquot {
namespace {

// The extents of the parts of both operands that are packed at once. The packed slivers fit in the second-level cache.
// Each extent is a multiple of the sliver widths of all loops.
struct BlockExtents {
  int64_t rows, depth, columns;

  constexpr int64_t packed_elements() const { return depth * (rows + columns); }
  constexpr int64_t sum_elements() const { return rows * columns; }
  constexpr int64_t widened_elements() const { return depth * std::max(rows, columns); }
};
constexpr BlockExtents kBlock{256, 384, 192}, kStackBlock{64, 384, 96};

Matrix part_of(const Matrix& m, int64_t row, int64_t column) {
  return {m.data.from(m.transposed ? column * m.stride + row : row * m.stride + column), m.stride, m.transposed};
}

Product part_of(const Product& p, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  Product part = p;
  part.a = part_of(p.a, row, 0);
  part.b = part_of(p.b, 0, column);
  part.to = p.to.from(row * p.to_stride + column);
  part.rows = rows;
  part.columns = columns;
  return part;
}

// Converts a strip of elements of `type` to fp32 in `wide`.
OperandStrip widened(const OperandStrip& strip, DType type, float* wide) {
  const int64_t rows = strip.depth_major ? strip.depth : strip.count,
                columns = strip.depth_major ? strip.count : strip.depth;
  const ConstValues from{strip.data, type};
  for (int64_t row = 0; row < rows; ++row) {
    host_loops(best_isa())
        .cast(wide + row * columns, DType::kFloat32, from.from(row * strip.stride).data, type, columns);
  }
  return {wide, columns, strip.depth_major, strip.count, strip.depth};
}

// A product with an fp32 result, on one thread and block by block. `packed` has packed_elements() elements and `wide`
// widened_elements(). `wide` may be null if the loops support the type of the operands.
class BlockedProduct {
 public:
  BlockedProduct(const Product& p, const ProductLoops& loops, const BlockExtents& block, float* packed, float* wide)
      : loops_(loops), p_(p), block_(block), a_(packed), b_(a_ + block.rows * block.depth), wide_(wide) {}

  void multiply() {
    int64_t k = 0;
    do {
      depth_ = std::min(block_.depth, p_.depth - k);
      multiply_at(k);
    } while ((k += block_.depth) < p_.depth);
  }

 private:
  int64_t rows_from(int64_t row) const { return std::min(block_.rows, p_.rows - row); }
  int64_t columns_from(int64_t column) const { return std::min(block_.columns, p_.columns - column); }
  OperandStrip strip_of(const Matrix& m, bool depth_major, int64_t count) const {
    const OperandStrip strip{m.data.data, m.stride, depth_major, count, depth_};
    return m.data.type == loops_.operands ? strip : widened(strip, m.data.type, wide_);
  }
  void pack_a(int64_t row, int64_t k) {
    loops_.pack_a(strip_of(part_of(p_.a, row, k), p_.a.transposed, rows_from(row)), a_);
  }
  void pack_b(int64_t k, int64_t column) {
    loops_.pack_b(strip_of(part_of(p_.b, k, column), !p_.b.transposed, columns_from(column)), b_);
  }
  // The operand of the outer loop is packed once. The other operand is packed again for each block of the outer loop.
  // Chooses the order that packs fewer elements.
  void multiply_at(int64_t k) {
    const int64_t row_blocks = (p_.rows + block_.rows - 1) / block_.rows;
    const int64_t column_blocks = (p_.columns + block_.columns - 1) / block_.columns;
    p_.rows + row_blocks* p_.columns <= p_.columns + column_blocks* p_.rows ? multiply_rows_outer(k)
                                                                            : multiply_columns_outer(k);
  }
  void multiply_rows_outer(int64_t k) {
    for (int64_t row = 0; row < p_.rows; row += block_.rows) {
      pack_a(row, k);
      for (int64_t column = 0; column < p_.columns; column += block_.columns) {
        pack_b(k, column);
        multiply_block(row, k, column);
      }
    }
  }
  void multiply_columns_outer(int64_t k) {
    for (int64_t column = 0; column < p_.columns; column += block_.columns) {
      pack_b(k, column);
      for (int64_t row = 0; row < p_.rows; row += block_.rows) {
        pack_a(row, k);
        multiply_block(row, k, column);
      }
    }
  }

  void multiply_block(int64_t row, int64_t k, int64_t column) {
    loops_.multiply({a_, b_, rows_from(row), columns_from(column), depth_, p_.to.fp32() + row * p_.to_stride + column,
                     p_.to_stride, p_.factor, p_.add || k > 0});
  }

  const ProductLoops& loops_;
  const Product& p_;
  const BlockExtents& block_;
  float *a_, *b_, *wide_;
  int64_t depth_ = 0;
};

// Stores `count` fp32 sums in 16-bit elements or, if `add`, adds them to these elements. Rounds once. Overwrites `sum`
// if `add`.
void round_row(const Values& to, float* sum, bool add, int64_t count) {
  const HostLoops& loops = host_loops(best_isa());
  if (add) {
    float before[kBlock.columns];
    loops.cast(before, DType::kFloat32, to.data, to.type, count);
    loops.add(sum, before, count);
  }
  loops.cast(to.data, to.type, sum, DType::kFloat32, count);
}

// The scratch memory of a thread contains packed operands, then a block of sums, then widened elements. For fp32
// products it contains only packed operands. These functions return the addresses of the sums and the widened elements.
float* sums_in(float* scratch) { return scratch + kBlock.packed_elements(); }
float* widened_in(float* scratch) { return sums_in(scratch) + kBlock.sum_elements(); }

// Computes a product with a 16-bit result. Adds in fp32, and rounds each complete sum once.
void multiply_to_16_bits(const Product& p, const ProductLoops& loops, float* scratch) {
  float* sum = sums_in(scratch);
  for (int64_t row = 0; row < p.rows; row += kBlock.rows) {
    for (int64_t column = 0; column < p.columns; column += kBlock.columns) {
      Product part =
          part_of(p, row, column, std::min(kBlock.rows, p.rows - row), std::min(kBlock.columns, p.columns - column));
      const Values to = part.to;
      part.to = sum;
      part.to_stride = part.columns;
      part.add = false;
      BlockedProduct(part, loops, kBlock, scratch, widened_in(scratch)).multiply();
      for (int64_t i = 0; i < part.rows; ++i)
        round_row(to.from(i * p.to_stride), sum + i * part.columns, p.add, part.columns);
    }
  }
}

// Computes one tile: the rectangle of the result that belongs to one thread.
void multiply_tile(const Product& tile, const ProductLoops& loops, float* scratch) {
  if (scratch == nullptr) {
    alignas(64) float packed[kStackBlock.packed_elements()];
    BlockedProduct(tile, loops, kStackBlock, packed, nullptr).multiply();
  } else if (tile.to.type == DType::kFloat32) {
    const bool widens = tile.a.data.type != loops.operands;
    BlockedProduct(tile, loops, kBlock, scratch, widens ? widened_in(scratch) : nullptr).multiply();
  } else {
    multiply_to_16_bits(tile, loops, scratch);
  }
}

void require_valid(const Product& p) {
  if (p.a.data.type != p.b.data.type) {
    throw FaultError("cannot multiply a " + std::string(name(p.a.data.type)) + " matrix by a " +
                     std::string(name(p.b.data.type)) + " matrix: convert one of them first");
  }
  if (p.scratch == nullptr && (p.a.data.type != DType::kFloat32 || p.to.type != DType::kFloat32))
    throw FaultError("a matrix product with 16-bit operands or a 16-bit result needs Product::scratch");
}

// Divides the result into rows x columns tiles. Each thread computes one tile.
struct TileGrid {
  int64_t rows = 1, columns = 1;
};

// Chooses tiles that are nearly square, because the number of elements that a tile packs depends on rows + columns.
TileGrid choose_tile_grid(const Product& p, int64_t thread_count) {
  TileGrid best;
  double least = 0;
  for (int64_t rows = 1; rows <= thread_count; ++rows) {
    if (thread_count % rows != 0) continue;
    const int64_t columns = thread_count / rows;
    const double cost = static_cast<double>(p.rows) / static_cast<double>(rows) +
                        static_cast<double>(p.columns) / static_cast<double>(columns);
    if (rows > 1 && cost >= least) continue;
    least = cost;
    best = {rows, columns};
  }
  return best;
}

// Returns the first row or column of tile `index`. Tiles begin at multiples of the sliver widths of all loops, so that
// only the last tile has a partial sliver.
int64_t tile_begin(int64_t extent, int64_t index, int64_t count) {
  constexpr int64_t kSliverMultiple = 48;
  const int64_t slivers = (extent + kSliverMultiple - 1) / kSliverMultiple;
  return std::min(extent, slivers * index / count * kSliverMultiple);
}

// Returns the loops for operands of this type. `method` is used only for bf16 operands.
const ProductLoops& product_loops_for(DType operands, Bf16ProductMethod method) {
  return operands == DType::kBFloat16 ? product_loops(method) : product_loops();
}

int64_t scratch_elements(DType operands, DType result, const ProductLoops& loops) {
  if (operands == DType::kFloat32 && result == DType::kFloat32) return kBlock.packed_elements();
  const bool widens = loops.operands != operands;
  return kBlock.packed_elements() + kBlock.sum_elements() + (widens ? kBlock.widened_elements() : 0);
}

void multiply_with_loops(ThreadPool& pool, const Product& p, const ProductLoops& loops) {
  require_valid(p);
  const int64_t scratch_per_thread = scratch_elements(p.a.data.type, p.to.type, loops);
  const TileGrid grid = choose_tile_grid(p, pool.thread_count());
  for_tasks(pool, grid.rows * grid.columns, [&](int64_t task, int64_t thread) {
    const int64_t i = task % grid.rows, j = task / grid.rows;
    const int64_t row = tile_begin(p.rows, i, grid.rows), column = tile_begin(p.columns, j, grid.columns);
    const Product tile = part_of(p, row, column, tile_begin(p.rows, i + 1, grid.rows) - row,
                                 tile_begin(p.columns, j + 1, grid.columns) - column);
    if (tile.rows == 0 || tile.columns == 0) return;
    multiply_tile(tile, loops, p.scratch == nullptr ? nullptr : p.scratch + thread * scratch_per_thread);
  });
}

}  // namespace

int64_t product_scratch_elements(DType operands, DType result, Bf16ProductMethod method) {
  return scratch_elements(operands, result, product_loops_for(operands, method));
}

void multiply(ThreadPool& pool, const Product& p) { multiply(pool, p, selected_bf16_product_method()); }

void multiply(ThreadPool& pool, const Product& p, Bf16ProductMethod method) {
  multiply_with_loops(pool, p, product_loops_for(p.a.data.type, method));
}

void multiply(ThreadPool& pool, const Product& p, const ProductLoops& loops) {
  if (p.a.data.type != DType::kFloat32 || loops.operands != DType::kFloat32)
    throw FaultError("multiply() with ProductLoops requires fp32 operands and fp32 loops");
  if (loops.sums == SumRounding::kSeparate && p.factor != 1.0f)
    throw FaultError("a matrix product with SumRounding::kSeparate requires a factor of 1, not " +
                     std::to_string(p.factor));
  multiply_with_loops(pool, p, loops);
}

}  // namespace aliquot
