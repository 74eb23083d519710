#include "apps/models/product.h"

#include <algorithm>
#include <cstdlib>
#include <dnnl.h>
#include <string>

#include "apps/models/parallel.h"
#include "apps/models/product_loops.h"
#include "apps/models/product_native.h"
#include "apps/models/row_loops.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

// What is laid out at a time, so that both operands' slivers stay in the second cache while they are multiplied, and the
// cost of laying them out is spread over as many products. Multiples of all kinds of slivers.
constexpr int64_t kRowBlock = 256, kDepthBlock = 384, kColumnBlock = 192;
constexpr int64_t kLaidOutElements = kDepthBlock * (kRowBlock + kColumnBlock);
// Operands of 16 bits are widened before they are laid out, and a result of 16 bits is summed in fp32 before it is rounded.
constexpr int64_t kWidenedElements = kDepthBlock * kRowBlock, kSumElements = kRowBlock * kColumnBlock;

bool is_native(const Product& p, Bf16Products how) {
  return how == Bf16Products::kNative && p.a.data.type == DType::kBFloat16 && p.b.data.type == DType::kBFloat16;
}

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

// `count` rows of a, or columns of b, in fp32: where they are, or widened in `wide`.
Strip strip_of(const Matrix& m, bool along, int64_t count, int64_t depth, float* wide) {
  if (m.data.type == DType::kFloat32) return {m.data.fp32(), m.stride, along, count, depth};
  const int64_t rows = along ? depth : count, columns = along ? count : depth;
  for (int64_t row = 0; row < rows; ++row)
    row_loops().convert(wide + row * columns, m.data.from(row * m.stride), columns);
  return {wide, columns, along, count, depth};
}

// A product on one thread, block by block, into fp32.
class Blocks {
 public:
  Blocks(const Product& p, float* scratch)
      : p_(p), a_(scratch), b_(a_ + kRowBlock * kDepthBlock), wide_(scratch + kLaidOutElements) {}

  void multiply() {
    int64_t k = 0;
    do {
      depth_ = std::min(kDepthBlock, p_.depth - k);
      multiply_at(k);
    } while ((k += kDepthBlock) < p_.depth);
  }

 private:
  int64_t rows_from(int64_t row) const { return std::min(kRowBlock, p_.rows - row); }
  int64_t columns_from(int64_t column) const { return std::min(kColumnBlock, p_.columns - column); }
  void lay_out_a(int64_t row, int64_t k) {
    loops_.lay_out_a(strip_of(part_of(p_.a, row, k), p_.a.transposed, rows_from(row), depth_, wide_), a_);
  }
  void lay_out_b(int64_t k, int64_t column) {
    loops_.lay_out_b(strip_of(part_of(p_.b, k, column), !p_.b.transposed, columns_from(column), depth_, wide_), b_);
  }
  // The operand of the outer loop is laid out once, and the other again for each of its blocks.
  void multiply_at(int64_t k) {
    const int64_t row_blocks = (p_.rows + kRowBlock - 1) / kRowBlock;
    const int64_t column_blocks = (p_.columns + kColumnBlock - 1) / kColumnBlock;
    if (p_.rows + row_blocks * p_.columns <= p_.columns + column_blocks * p_.rows) {
      for (int64_t row = 0; row < p_.rows; row += kRowBlock) {
        lay_out_a(row, k);
        for (int64_t column = 0; column < p_.columns; column += kColumnBlock) {
          lay_out_b(k, column);
          multiply_block(row, k, column);
        }
      }
      return;
    }
    for (int64_t column = 0; column < p_.columns; column += kColumnBlock) {
      lay_out_b(k, column);
      for (int64_t row = 0; row < p_.rows; row += kRowBlock) {
        lay_out_a(row, k);
        multiply_block(row, k, column);
      }
    }
  }

  void multiply_block(int64_t row, int64_t k, int64_t column) {
    loops_.multiply({a_, b_, rows_from(row), columns_from(column), depth_, p_.to.fp32() + row * p_.to_stride + column,
                     p_.to_stride, p_.factor, p_.add || k > 0});
  }

  const ProductLoops& loops_ = product_loops();
  const Product& p_;
  float *a_, *b_, *wide_;
  int64_t depth_ = 0;
};

// The same into 16 bits: sums stay in fp32 until they are whole.
void multiply_to_16_bits(const Product& p, float* scratch) {
  float* sum = scratch + kLaidOutElements + kWidenedElements;
  for (int64_t row = 0; row < p.rows; row += kRowBlock) {
    for (int64_t column = 0; column < p.columns; column += kColumnBlock) {
      Product part =
          part_of(p, row, column, std::min(kRowBlock, p.rows - row), std::min(kColumnBlock, p.columns - column));
      const Values to = part.to;
      part.to = sum;
      part.to_stride = part.columns;
      part.add = false;
      Blocks(part, scratch).multiply();
      for (int64_t i = 0; i < part.rows; ++i) {
        if (p.add) row_loops().add(sum + i * part.columns, to.from(i * p.to_stride), part.columns);
        row_loops().convert(to.from(i * p.to_stride), sum + i * part.columns, part.columns);
      }
    }
  }
}

void require_one_type(const Product& p) {
  if (p.a.data.type == p.b.data.type) return;
  throw FaultError("A matrix product of " + std::string(name(p.a.data.type)) + " by " +
                   std::string(name(p.b.data.type)) + ": convert one of them first.");
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

// oneDNN may sum in another order where a product is cut in another way, so there the extents alone say how. Measured at
// GPT-2 124M's shapes: columns of 192 and rows of 512 run within 3 % of the uncut product, half of that 10 to 40 % slower.
Cuts cuts_for_native(const Product& p) {
  constexpr int64_t kTileRows = 512, kTileColumns = 192;
  const auto count = [](int64_t extent, int64_t tile) { return std::max<int64_t>(1, (extent + tile / 2) / tile); };
  return {count(p.rows, kTileRows), count(p.columns, kTileColumns)};
}

// Edges on multiples of every kind of sliver, so that no tile but the last has a ragged one.
int64_t cut(int64_t extent, int64_t index, int64_t count) {
  constexpr int64_t kSlivers = 48;
  const int64_t slivers = (extent + kSlivers - 1) / kSlivers;
  return std::min(extent, slivers * index / count * kSlivers);
}

// oneDNN numbers sets of instructions by the bits of all they include.
bool has_instructions(dnnl_cpu_isa_t isa) { return (dnnl_get_effective_cpu_isa() & isa) == isa; }

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

Bf16Products best_bf16_products() {
  if (const char* asked = std::getenv("ALIQUOT_BF16_PRODUCTS")) {
    const std::string word = asked;
    if (word == "native" && has_native_bf16()) return Bf16Products::kNative;
    if (word == "native" || word == "widened") return Bf16Products::kWidened;
    throw UsageError("ALIQUOT_BF16_PRODUCTS=" + word + ": give native or widened, or nothing.");
  }
  return has_instructions(dnnl_cpu_isa_avx512_core_amx) || (has_native_bf16() && !is_intel()) ? Bf16Products::kNative
                                                                                              : Bf16Products::kWidened;
}

}  // namespace

bool has_native_bf16() { return has_instructions(dnnl_cpu_isa_avx512_core_bf16); }

Bf16Products bf16_products() {
  static const Bf16Products best = best_bf16_products();
  return best;
}

int64_t product_scratch_elements(DType operands, DType result, Bf16Products how) {
  const bool in_fp32 = operands == DType::kFloat32 && result == DType::kFloat32;
  const bool is_native = operands == DType::kBFloat16 && how == Bf16Products::kNative;
  return in_fp32 || is_native ? kLaidOutElements : kLaidOutElements + kWidenedElements + kSumElements;
}

void multiply_here(const Product& p) {
  if (p.rows == 0 || p.columns == 0) return;
  compute_alone();
  const dnnl_status_t status = dnnl_sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.rows, p.columns,
                                          p.depth, p.factor, p.a.data.fp32(), p.a.stride, p.b.data.fp32(), p.b.stride,
                                          p.add ? 1.0f : 0.0f, p.to.fp32(), p.to_stride);
  if (status != dnnl_success) {
    throw FaultError("oneDNN refused a matrix product of " + std::to_string(p.rows) + " x " + std::to_string(p.depth) +
                     " x " + std::to_string(p.columns) + " (status " + std::to_string(status) + ").");
  }
}

void multiply(ThreadPool& pool, const Product& p) { multiply(pool, p, bf16_products()); }

void multiply(ThreadPool& pool, const Product& p, Bf16Products how) {
  require_one_type(p);  // its scratch is that of one
  const bool native = is_native(p, how);
  const Cuts cuts = native ? cuts_for_native(p) : cuts_for(p, pool.thread_count());
  for_tasks(pool, cuts.rows * cuts.columns, [&](int64_t task, int64_t thread) {
    const int64_t i = task % cuts.rows, j = task / cuts.rows;
    const int64_t row = cut(p.rows, i, cuts.rows), column = cut(p.columns, j, cuts.columns);
    const Product tile =
        part_of(p, row, column, cut(p.rows, i + 1, cuts.rows) - row, cut(p.columns, j + 1, cuts.columns) - column);
    if (tile.rows == 0 || tile.columns == 0) return;
    if (native) return multiply_native(tile);
    float* scratch = p.scratch + thread * product_scratch_elements(p.a.data.type, p.to.type, how);
    p.to.type == DType::kFloat32 ? Blocks(tile, scratch).multiply() : multiply_to_16_bits(tile, scratch);
  });
}

}  // namespace aliquot
