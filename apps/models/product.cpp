#include "apps/models/product.h"

#include <algorithm>
#include <cstdlib>
#include <dnnl.h>
#include <string>

#include "apps/models/parallel.h"
#include "apps/models/product_native.h"
#include "apps/models/row_loops.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

// Measured at GPT-2 124M's shapes: columns of 192 and rows of 512 run within 3 % of the uncut product, half of that 10
// to 40 % slower.
constexpr int64_t kTileColumns = 192;
constexpr int64_t kTileRows = 512;
// A tile's extents stay below one and a half times that.
constexpr int64_t kMostColumns = kTileColumns * 3 / 2, kMostRows = kTileRows * 3 / 2;
// Depth that is widened at a time, so that a tile's operands stay in the cache of a core.
constexpr int64_t kWidenedDepth = 512;
constexpr int64_t kScratchElements = (kMostRows + kMostColumns) * kWidenedDepth + kMostRows * kMostColumns;

int64_t tile_count(int64_t extent, int64_t tile) { return std::max<int64_t>(1, (extent + tile / 2) / tile); }

// Edges on multiples of 16, so that no tile but the last has a ragged vector.
int64_t tile_edge(int64_t extent, int64_t index, int64_t count) {
  return index == count ? extent : extent * index / count / 16 * 16;
}

Matrix rows_from(const Matrix& a, int64_t row) {
  return {a.data.from(a.transposed ? row : row * a.stride), a.stride, a.transposed};
}

Matrix columns_from(const Matrix& b, int64_t column) {
  return {b.data.from(b.transposed ? column * b.stride : column), b.stride, b.transposed};
}

bool is_fp32(const Product& p) {
  return p.a.data.type == DType::kFloat32 && p.b.data.type == DType::kFloat32 && p.to.type == DType::kFloat32;
}

bool is_native(const Product& p, Bf16Products how) {
  return how == Bf16Products::kNative && p.a.data.type == DType::kBFloat16 && p.b.data.type == DType::kBFloat16;
}

// `rows` x `columns` of a matrix as it lies in memory, in fp32: where it is, or else in `scratch`.
Matrix widened(const Matrix& a, int64_t rows, int64_t columns, float* scratch) {
  if (a.data.type == DType::kFloat32) return a;
  if (a.transposed) std::swap(rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    row_loops().convert(scratch + row * columns, a.data.from(row * a.stride), columns);
  }
  return {scratch, columns, a.transposed};
}

// A tile by fp32 products, a stretch of its depth after the other; the sum stays in fp32 until it is whole.
void multiply_widened(const Product& p, float* scratch) {
  float* widened_b = scratch + kMostRows * kWidenedDepth;
  float* sum = widened_b + kMostColumns * kWidenedDepth;
  const bool in_place = p.to.type == DType::kFloat32;
  for (int64_t depth = 0; depth < p.depth; depth += kWidenedDepth) {
    Product part = p;
    part.depth = std::min(kWidenedDepth, p.depth - depth);
    part.a = widened(columns_from(p.a, depth), p.rows, part.depth, scratch);
    part.b = widened(rows_from(p.b, depth), part.depth, p.columns, widened_b);
    part.to = in_place ? p.to : Values(sum);
    part.to_stride = in_place ? p.to_stride : p.columns;
    part.add = depth > 0 || (in_place && p.add);
    multiply_here(part);
  }
  for (int64_t row = 0; !in_place && row < p.rows; ++row) {
    const Values to = p.to.from(row * p.to_stride);
    float* from = sum + row * p.columns;
    if (p.add) row_loops().add(from, to, p.columns);
    row_loops().convert(to, from, p.columns);
  }
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
  if (operands == DType::kFloat32 && result == DType::kFloat32) return 0;
  if (operands == DType::kBFloat16 && how == Bf16Products::kNative) return 0;
  return kScratchElements;
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
  const int64_t row_tiles = tile_count(p.rows, kTileRows);
  const int64_t column_tiles = tile_count(p.columns, kTileColumns);
  for_tasks(pool, row_tiles * column_tiles, [&](int64_t task, int64_t part) {
    const int64_t row = tile_edge(p.rows, task % row_tiles, row_tiles);
    const int64_t column = tile_edge(p.columns, task / row_tiles, column_tiles);
    Product tile = p;
    tile.a = rows_from(p.a, row);
    tile.b = columns_from(p.b, column);
    tile.to = p.to.from(row * p.to_stride + column);
    tile.rows = tile_edge(p.rows, task % row_tiles + 1, row_tiles) - row;
    tile.columns = tile_edge(p.columns, task / row_tiles + 1, column_tiles) - column;
    if (is_fp32(p)) return multiply_here(tile);
    if (is_native(p, how)) return multiply_native(tile);
    multiply_widened(tile, p.scratch + part * kScratchElements);
  });
}

}  // namespace aliquot
