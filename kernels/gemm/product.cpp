#include "kernels/gemm/product.h"

#include <algorithm>
#include <string>

#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/loops.h"
#include "kernels/system/error.h"
#include "kernels/system/parallel.h"

namespace aliquot {
namespace {

// How much of both operands is packed at a time. The packed slivers stay in the second-level cache while they are multiplied.
// All are multiples of every kind of sliver.
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

// A strip of elements of `type`, widened to fp32 in `wide`.
Strip widened(const Strip& strip, DType type, float* wide) {
  const int64_t rows = strip.along ? strip.depth : strip.count, columns = strip.along ? strip.count : strip.depth;
  const ConstValues from{strip.data, type};
  for (int64_t row = 0; row < rows; ++row) {
    host_loops(best_isa())
        .cast(wide + row * columns, DType::kFloat32, from.from(row * strip.stride).data, type, columns);
  }
  return {wide, columns, strip.along, strip.count, strip.depth};
}

// A product on one thread, block by block, into fp32. `packed` holds packed_elements(), `wide` widened_elements(); the latter
// may be null where the loops take the operands as they are.
class Blocks {
 public:
  Blocks(const Product& p, const ProductLoops& loops, const BlockExtents& block, float* packed, float* wide)
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
  Strip strip_of(const Matrix& m, bool along, int64_t count) const {
    const Strip strip{m.data.data, m.stride, along, count, depth_};
    return m.data.type == loops_.operands ? strip : widened(strip, m.data.type, wide_);
  }
  void lay_out_a(int64_t row, int64_t k) {
    loops_.lay_out_a(strip_of(part_of(p_.a, row, k), p_.a.transposed, rows_from(row)), a_);
  }
  void lay_out_b(int64_t k, int64_t column) {
    loops_.lay_out_b(strip_of(part_of(p_.b, k, column), !p_.b.transposed, columns_from(column)), b_);
  }
  // The operand of the outer loop is packed once, the other again for each of its blocks. The cheaper order is taken.
  void multiply_at(int64_t k) {
    const int64_t row_blocks = (p_.rows + block_.rows - 1) / block_.rows;
    const int64_t column_blocks = (p_.columns + block_.columns - 1) / block_.columns;
    p_.rows + row_blocks* p_.columns <= p_.columns + column_blocks* p_.rows ? by_rows(k) : by_columns(k);
  }
  void by_rows(int64_t k) {
    for (int64_t row = 0; row < p_.rows; row += block_.rows) {
      lay_out_a(row, k);
      for (int64_t column = 0; column < p_.columns; column += block_.columns) {
        lay_out_b(k, column);
        multiply_block(row, k, column);
      }
    }
  }
  void by_columns(int64_t k) {
    for (int64_t column = 0; column < p_.columns; column += block_.columns) {
      lay_out_b(k, column);
      for (int64_t row = 0; row < p_.rows; row += block_.rows) {
        lay_out_a(row, k);
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

// to += sum or to = sum, rounded once, for `count` elements of 16 bits.
void round_row(const Values& to, float* sum, bool add, int64_t count) {
  const HostLoops& loops = host_loops(best_isa());
  if (add) {
    float before[kBlock.columns];
    loops.cast(before, DType::kFloat32, to.data, to.type, count);
    loops.add(sum, before, count);
  }
  loops.cast(to.data, to.type, sum, DType::kFloat32, count);
}

// A thread's scratch: packed operands, a block of sums, widened elements. fp32 products have the first part only.
float* sums_in(float* scratch) { return scratch + kBlock.packed_elements(); }
float* widened_in(float* scratch) { return sums_in(scratch) + kBlock.sum_elements(); }

// The same into 16 bits: a sum stays in fp32 until it is complete.
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
      Blocks(part, loops, kBlock, scratch, widened_in(scratch)).multiply();
      for (int64_t i = 0; i < part.rows; ++i)
        round_row(to.from(i * p.to_stride), sum + i * part.columns, p.add, part.columns);
    }
  }
}

// A thread's tile of the product.
void multiply_tile(const Product& tile, const ProductLoops& loops, float* scratch) {
  if (scratch == nullptr) {
    alignas(64) float packed[kStackBlock.packed_elements()];
    Blocks(tile, loops, kStackBlock, packed, nullptr).multiply();
  } else if (tile.to.type == DType::kFloat32) {
    const bool widens = tile.a.data.type != loops.operands;
    Blocks(tile, loops, kBlock, scratch, widens ? widened_in(scratch) : nullptr).multiply();
  } else {
    multiply_to_16_bits(tile, loops, scratch);
  }
}

void require_valid(const Product& p) {
  if (p.a.data.type != p.b.data.type) {
    throw FaultError("A matrix product of " + std::string(name(p.a.data.type)) + " by " +
                     std::string(name(p.b.data.type)) + ": convert one of them first.");
  }
  if (p.scratch == nullptr && (p.a.data.type != DType::kFloat32 || p.to.type != DType::kFloat32))
    throw FaultError("A matrix product of 16-bit elements needs scratch memory.");
}

// How a product is cut into rows x columns tiles, about one a thread.
struct Cuts {
  int64_t rows = 1, columns = 1;
};

// As square as can be: what a tile lays out goes by its edges.
Cuts cuts_for(const Product& p, int64_t thread_count) {
  Cuts best;
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

// Edges on multiples of every kind of sliver, so that no tile but the last has a ragged one.
int64_t cut(int64_t extent, int64_t index, int64_t count) {
  constexpr int64_t kSlivers = 48;
  const int64_t slivers = (extent + kSlivers - 1) / kSlivers;
  return std::min(extent, slivers * index / count * kSlivers);
}

// Only operands of bf16 are multiplied in more than one way.
const ProductLoops& loops_of(DType operands, Bf16Products how) {
  return operands == DType::kBFloat16 ? product_loops(how) : product_loops();
}

int64_t scratch_elements(DType operands, DType result, const ProductLoops& loops) {
  if (operands == DType::kFloat32 && result == DType::kFloat32) return kBlock.packed_elements();
  const bool widens = loops.operands != operands;
  return kBlock.packed_elements() + kBlock.sum_elements() + (widens ? kBlock.widened_elements() : 0);
}

void multiply_by(ThreadPool& pool, const Product& p, const ProductLoops& loops) {
  require_valid(p);
  const int64_t each = scratch_elements(p.a.data.type, p.to.type, loops);
  const Cuts cuts = cuts_for(p, pool.thread_count());
  for_tasks(pool, cuts.rows * cuts.columns, [&](int64_t task, int64_t thread) {
    const int64_t i = task % cuts.rows, j = task / cuts.rows;
    const int64_t row = cut(p.rows, i, cuts.rows), column = cut(p.columns, j, cuts.columns);
    const Product tile =
        part_of(p, row, column, cut(p.rows, i + 1, cuts.rows) - row, cut(p.columns, j + 1, cuts.columns) - column);
    if (tile.rows == 0 || tile.columns == 0) return;
    multiply_tile(tile, loops, p.scratch == nullptr ? nullptr : p.scratch + thread * each);
  });
}

}  // namespace

int64_t product_scratch_elements(DType operands, DType result, Bf16Products how) {
  return scratch_elements(operands, result, loops_of(operands, how));
}

void multiply(ThreadPool& pool, const Product& p) { multiply(pool, p, bf16_products()); }

void multiply(ThreadPool& pool, const Product& p, Bf16Products how) {
  multiply_by(pool, p, loops_of(p.a.data.type, how));
}

void multiply(ThreadPool& pool, const Product& p, const ProductLoops& loops) {
  if (p.a.data.type != DType::kFloat32 || loops.operands != DType::kFloat32)
    throw FaultError("A matrix product with given loops takes operands of fp32.");
  if (loops.sums == Sums::kSeparate && p.factor != 1.0f)
    throw FaultError("A matrix product whose operations are rounded one by one takes no factor but 1.");
  multiply_by(pool, p, loops);
}

}  // namespace aliquot
