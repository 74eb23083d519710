#include "kernels/gemm/product.h"

#include <algorithm>
#include <string>

#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/blocked_product.h"
#include "kernels/gemm/loops.h"
#include "kernels/system/error.h"
#include "kernels/system/parallel.h"

namespace aliquot {
namespace {

// The scratch memory of a thread has kPackedElements elements for packed operands. If the operands or the result are
// not fp32, it has kSumElements more, and kWideElements more if the loops do not multiply the type of the operands.
constexpr int64_t kPackedElements = 448 * kBlockDepth, kSumElements = 256 * 192, kWideElements = 256 * kBlockDepth;
static_assert(kPackedElements >= kMinPackedElements && kWideElements >= kConvertedElements);

Product part_of(const Product& p, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  Product part = p;
  part.a = part_of(p.a, row, 0);
  part.b = part_of(p.b, 0, column);
  part.to = p.to.from(row * p.to_stride + column);
  part.rows = rows;
  part.columns = columns;
  return part;
}

// Returns the loops for operands of this type. `method` is used only for bf16 operands.
const ProductLoops& product_loops_for(DType operands, Bf16ProductMethod method) {
  return operands == DType::kBFloat16 ? product_loops(method) : product_loops();
}

int64_t scratch_elements(DType operands, DType result, const ProductLoops& loops) {
  if (operands == DType::kFloat32 && result == DType::kFloat32) return kPackedElements;
  return kPackedElements + kSumElements + (loops.operands != operands ? kWideElements : 0);
}

// Stores `count` fp32 sums in 16-bit elements or, if `add`, adds them to these elements. Rounds once. Overwrites `sum`
// if `add`.
void round_row(const Values& to, float* sum, bool add, int64_t count) {
  const HostLoops& loops = host_loops(best_isa());
  if (add) {
    constexpr int64_t kCount = 256;
    float before[kCount];
    for (int64_t i = 0; i < count; i += kCount) {
      const int64_t part = std::min(kCount, count - i);
      loops.cast(before, DType::kFloat32, to.from(i).data, to.type, part);
      loops.add(sum + i, before, part);
    }
  }
  loops.cast(to.data, to.type, sum, DType::kFloat32, count);
}

// Computes a product with a 16-bit result. Adds in fp32, and rounds each complete sum once.
class RoundedProduct {
 public:
  RoundedProduct(const Product& p, const ProductLoops& loops, float* scratch)
      : p_(p), loops_(loops), rows_(std::min(kMostRows, round_up(p.rows, kRowMultiple))) {
    const bool converts = !packs(loops, p.a.data.type);
    memory_.converted = scratch;
    memory_.packed = scratch + (converts ? kConvertedElements : 0);
    memory_.packed_elements =
        std::max(kMinPackedElements, (rows_ + packed_columns(loops)) * packed_lanes(loops, p.depth));
    sums_ = memory_.packed + memory_.packed_elements;
    const int64_t sum_elements = scratch + scratch_elements(p.a.data.type, p.to.type, loops) - sums_;
    columns_ = sum_elements / rows_ / kColumnMultiple * kColumnMultiple;
  }

  void multiply() const {
    for (int64_t row = 0; row < p_.rows; row += rows_) {
      for (int64_t column = 0; column < p_.columns; column += columns_) multiply_part(row, column);
    }
  }

 private:
  static constexpr int64_t kMostRows = 256;

  void multiply_part(int64_t row, int64_t column) const {
    Product part = part_of(p_, row, column, std::min(rows_, p_.rows - row), std::min(columns_, p_.columns - column));
    const Values to = part.to;
    part.to = sums_;
    part.to_stride = part.columns;
    part.add = false;
    multiply_by_blocks(part, loops_, memory_);
    for (int64_t i = 0; i < part.rows; ++i)
      round_row(to.from(i * p_.to_stride), sums_ + i * part.columns, p_.add, part.columns);
  }

  const Product& p_;
  const ProductLoops& loops_;
  BlockMemory memory_;
  int64_t rows_, columns_ = 0;
  float* sums_ = nullptr;
};

// Computes one tile: the rectangle of the result that belongs to one thread.
void multiply_tile(const Product& tile, const ProductLoops& loops, float* scratch) {
  if (scratch == nullptr) {
    alignas(64) float packed[kMinPackedElements];
    multiply_by_blocks(tile, loops, {packed, kMinPackedElements, nullptr});
  } else if (tile.to.type == DType::kFloat32) {
    multiply_by_blocks(tile, loops, {scratch, kPackedElements, scratch + kPackedElements});
  } else {
    RoundedProduct(tile, loops, scratch).multiply();
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
  static_assert(kColumnMultiple % kRowMultiple == 0);
  const int64_t slivers = round_up(extent, kColumnMultiple) / kColumnMultiple;
  return std::min(extent, slivers * index / count * kColumnMultiple);
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
