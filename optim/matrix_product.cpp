#include "optim/matrix_product.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/formats/host_device.h"

namespace aliquot {
namespace {

/// A tile of the product stays in registers while the sum runs along K; K itself is never cut between threads, and a
/// cut of it in time (to keep a panel of b in the cache) goes on from what was stored, so no cut changes a sum's order.
constexpr int kTileRows = 6, kTileVectors = 2;
constexpr int64_t kPanelDepth = 512;

struct Tile {
  float* to;
  const float* a;
  const float* panel;  // depth rows of kTileVectors vectors
  int64_t to_stride, a_stride, depth;
  int64_t rows, columns;  // of the tile: at most kTileRows, kTileVectors vectors
  bool first;             // begins at 0, not at what `to` holds
};

template <int kBytes>
struct Lanes {
  using Vector [[gnu::vector_size(kBytes), gnu::aligned(4), gnu::may_alias]] = float;
  static constexpr int64_t kLanes = kBytes / 4, kColumns = kTileVectors * kLanes;

  ALIQUOT_HOST_DEVICE static void add_products(float (&sums)[kTileRows][kColumns], const Tile& tile) {
    Vector sum[kTileRows][kTileVectors];
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = *reinterpret_cast<const Vector*>(&sums[r][v * kLanes]);
    }
    const float* row[kTileRows];
    for (int r = 0; r < kTileRows; ++r) row[r] = tile.a + (r < tile.rows ? r : 0) * tile.a_stride;
    for (int64_t k = 0; k < tile.depth; ++k) {
      Vector of_b[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) {
        of_b[v] = *reinterpret_cast<const Vector*>(tile.panel + k * kColumns + v * kLanes);
      }
      for (int r = 0; r < kTileRows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) sum[r][v] = sum[r][v] + row[r][k] * of_b[v];
      }
    }
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) *reinterpret_cast<Vector*>(&sums[r][v * kLanes]) = sum[r][v];
    }
  }

  ALIQUOT_HOST_DEVICE static void tile(const Tile& tile) {
    float sums[kTileRows][kColumns] = {};
    if (!tile.first) {
      for (int64_t r = 0; r < tile.rows; ++r) std::copy_n(tile.to + r * tile.to_stride, tile.columns, sums[r]);
    }
    add_products(sums, tile);
    for (int64_t r = 0; r < tile.rows; ++r) std::copy_n(sums[r], tile.columns, tile.to + r * tile.to_stride);
  }
};

void tile_plain(const Tile& tile) { Lanes<16>::tile(tile); }
#if defined(__x86_64__)
[[gnu::target("avx2")]] void tile_avx2(const Tile& tile) { Lanes<32>::tile(tile); }
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void tile_avx512(const Tile& tile) {
  Lanes<64>::tile(tile);
}
#endif

struct Tiler {
  void (*tile)(const Tile&);
  int64_t columns;
};

Tiler tiler(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return {tile_avx512, Lanes<64>::kColumns};
  if (isa == Isa::kAvx2) return {tile_avx2, Lanes<32>::kColumns};
#endif
  static_cast<void>(isa);
  return {tile_plain, Lanes<16>::kColumns};
}

/// Rows [k, k + depth) and columns [j, j + width) of b, the missing columns as zeros.
void pack(float* panel, const ConstMatrix& b, int64_t k, int64_t depth, int64_t j, int64_t width) {
  for (int64_t row = 0; row < depth; ++row) {
    const int64_t here = std::min(width, b.columns - j);
    std::copy_n(b.data + (k + row) * b.columns + j, here, panel + row * width);
    std::fill_n(panel + row * width + here, width - here, 0.0f);
  }
}

/// The product's columns [begin, end), `begin` a multiple of the tile's.
void columns(float* to, const ConstMatrix& a, const ConstMatrix& b, const Tiler& tiler, int64_t begin, int64_t end) {
  alignas(64) float panel[kPanelDepth * Lanes<64>::kColumns];
  for (int64_t j = begin; j < end; j += tiler.columns) {
    for (int64_t k = 0; k < a.columns; k += kPanelDepth) {
      const int64_t depth = std::min(kPanelDepth, a.columns - k);
      pack(panel, b, k, depth, j, tiler.columns);
      for (int64_t i = 0; i < a.rows; i += kTileRows) {
        tiler.tile({.to = to + i * b.columns + j,
                    .a = a.data + i * a.columns + k,
                    .panel = panel,
                    .to_stride = b.columns,
                    .a_stride = a.columns,
                    .depth = depth,
                    .rows = std::min<int64_t>(kTileRows, a.rows - i),
                    .columns = std::min(tiler.columns, b.columns - j),
                    .first = k == 0});
      }
    }
  }
}

}  // namespace

void multiply(float* to, const ConstMatrix& a, const ConstMatrix& b, Isa isa, ThreadPool& pool) {
  if (a.columns != b.rows) throw std::invalid_argument("multiply: the factors do not fit");
  if (a.columns == 0) std::fill_n(to, a.rows * b.columns, 0.0f);
  const Tiler of_isa = tiler(isa);
  // The pool takes a loop of few grains for a small one; a column of tiles is none. So it is told of elements.
  const int64_t tiles = (b.columns + of_isa.columns - 1) / of_isa.columns, pieces = 16 * tiles;
  pool.for_ranges(pieces + 1, 1, [&](int64_t begin, int64_t end) {
    const int64_t from = (begin + 15) / 16, to_tile = std::min(tiles, (end + 15) / 16);
    if (from < to_tile) {
      columns(to, a, b, of_isa, from * of_isa.columns, std::min(b.columns, to_tile * of_isa.columns));
    }
  });
}

void transpose(float* to, const ConstMatrix& a, ThreadPool& pool) {
  constexpr int64_t kTile = 16;
  const auto rows_of_tiles = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kTile) {
      for (int64_t j = 0; j < a.columns; j += kTile) {
        for (int64_t r = i; r < std::min(end, i + kTile); ++r) {
          for (int64_t c = j; c < std::min(a.columns, j + kTile); ++c) to[c * a.rows + r] = a.data[r * a.columns + c];
        }
      }
    }
  };
  pool.for_ranges(a.rows, kTile, rows_of_tiles);
}

}  // namespace aliquot
