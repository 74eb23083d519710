#include "apps/models/product.h"

#include <algorithm>
#include <dlfcn.h>
#include <dnnl.h>
#include <string>

#include "apps/models/parallel.h"
#include "apps/models/product_loops.h"
#include "apps/models/row_loops.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

// What is laid out at a time, so that both operands' slivers stay in the second cache while they are multiplied, and the
// cost of laying them out is spread over as many products. Multiples of all kinds of slivers.
constexpr int64_t kRowBlock = 256, kDepthBlock = 384, kColumnBlock = 192;
constexpr int64_t kLaidOutElements = kDepthBlock * (kRowBlock + kColumnBlock);
// A result of 16 bits is summed in fp32 before it is rounded, and operands that no loops take are widened before they are
// laid out. In a thread's scratch these follow what is laid out.
constexpr int64_t kSumElements = kRowBlock * kColumnBlock, kWidenedElements = kDepthBlock * kRowBlock;

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

// A strip of elements of `type`, in fp32.
Strip widened(const Strip& strip, DType type, float* wide) {
  const int64_t rows = strip.along ? strip.depth : strip.count, columns = strip.along ? strip.count : strip.depth;
  const ConstValues from{strip.data, type};
  for (int64_t row = 0; row < rows; ++row)
    row_loops().convert(wide + row * columns, from.from(row * strip.stride), columns);
  return {wide, columns, strip.along, strip.count, strip.depth};
}

// A product on one thread, block by block, into fp32.
class Blocks {
 public:
  Blocks(const Product& p, const ProductLoops& loops, float* scratch)
      : loops_(loops),
        p_(p),
        a_(scratch),
        b_(a_ + kRowBlock * kDepthBlock),
        wide_(scratch + kLaidOutElements + kSumElements) {}

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

  const ProductLoops& loops_;
  const Product& p_;
  float *a_, *b_, *wide_;
  int64_t depth_ = 0;
};

// The same into 16 bits: sums stay in fp32 until they are whole.
void multiply_to_16_bits(const Product& p, const ProductLoops& loops, float* scratch) {
  float* sum = scratch + kLaidOutElements;
  for (int64_t row = 0; row < p.rows; row += kRowBlock) {
    for (int64_t column = 0; column < p.columns; column += kColumnBlock) {
      Product part =
          part_of(p, row, column, std::min(kRowBlock, p.rows - row), std::min(kColumnBlock, p.columns - column));
      const Values to = part.to;
      part.to = sum;
      part.to_stride = part.columns;
      part.add = false;
      Blocks(part, loops, scratch).multiply();
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

// Debian's oneDNN shares its work through OpenMP, whose number of threads is a thread's own. Here what it multiplies is one
// task of many, so each thread that computes them asks for one. The runtime is looked up by name: it is oneDNN's, not ours.
void compute_alone() {
  thread_local const bool done = [] {
    using SetThreads = void (*)(int);
    const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

int64_t product_scratch_elements(DType operands, DType result, Bf16Products how) {
  if (operands == DType::kFloat32 && result == DType::kFloat32) return kLaidOutElements;
  const bool widens = loops_of(operands, how).operands != operands;
  return kLaidOutElements + kSumElements + (widens ? kWidenedElements : 0);
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
  const ProductLoops& loops = loops_of(p.a.data.type, how);
  const int64_t scratch_elements = product_scratch_elements(p.a.data.type, p.to.type, how);
  const Cuts cuts = cuts_for(p, pool.thread_count());
  for_tasks(pool, cuts.rows * cuts.columns, [&](int64_t task, int64_t thread) {
    const int64_t i = task % cuts.rows, j = task / cuts.rows;
    const int64_t row = cut(p.rows, i, cuts.rows), column = cut(p.columns, j, cuts.columns);
    const Product tile =
        part_of(p, row, column, cut(p.rows, i + 1, cuts.rows) - row, cut(p.columns, j + 1, cuts.columns) - column);
    if (tile.rows == 0 || tile.columns == 0) return;
    float* scratch = p.scratch + thread * scratch_elements;
    p.to.type == DType::kFloat32 ? Blocks(tile, loops, scratch).multiply() : multiply_to_16_bits(tile, loops, scratch);
  });
}

}  // namespace aliquot
