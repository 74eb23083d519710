// Products of bf16 by AMX's tiles: registers of 16 rows of 64 bytes, and one instruction that multiplies two of them.
#include <immintrin.h>

namespace aliquot {
namespace {

constexpr int kWidth = 16, kLaneStep = 16;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/fused_avx512.inc"
#include "kernels/gemm/pairs.inc"

namespace aliquot {
namespace {

constexpr int kEdge = 16;                        // rows of a tile, and lanes of its row
constexpr int kTile = kEdge * kEdge;             // lanes
constexpr int64_t kRow = kEdge * sizeof(float);  // bytes

/// Every tile is whole: operands are filled up with zeros.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {kRow, kRow, kRow, kRow, kRow, kRow, kRow, kRow};
  uint8_t rows[16] = {kEdge, kEdge, kEdge, kEdge, kEdge, kEdge, kEdge, kEdge};
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kTileShapes;

/// Compilers do not see that tiles are loaded from memory and stored there.
[[gnu::always_inline]] inline void settle_memory() { __asm__ volatile("" ::: "memory"); }

/// A tile of a: 16 rows of 16 lanes each. It is what b's layout gives, turned over.
void lay_out_a_tile(const Strip& strip, int64_t row, int64_t lane, float* to) {
  const bool whole = row + kEdge <= strip.count && 2 * (lane + kEdge) <= strip.depth;
  if (whole && !strip.along) {
    for (int64_t i = 0; i < kEdge; ++i)
      std::memcpy(to + i * kEdge, elements(strip) + (row + i) * strip.stride + 2 * lane, kRow);
    return;
  }
  if (!whole) {
    for (int64_t i = 0; i < kEdge; ++i) {
      for (int64_t k = 0; k < kEdge; ++k) to[i * kEdge + k] = pair_at(strip, row + i, 2 * (lane + k));
    }
    return;
  }
  Register square[kEdge];
#pragma GCC unroll 16
  for (int64_t k = 0; k < kEdge; ++k) {
    float pairs[kEdge];
    pair_up<kEdge>(elements(strip) + 2 * (lane + k) * strip.stride + row, strip.stride, pairs);
    square[k] = load<Register>(pairs);
  }
  transpose<kEdge / 2, kEdge>(square);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kEdge; ++i) store(to + i * kEdge, square[i]);
}

void lay_out_a(const Strip& strip, void* to_lanes) {
  auto* to = static_cast<float*>(to_lanes);
  const int64_t lanes = lanes_of(strip.depth);
  for (int64_t row = 0; row < strip.count; row += kEdge) {
    for (int64_t lane = 0; lane < lanes; lane += kEdge)
      lay_out_a_tile(strip, row, lane, to + row * lanes + lane * kEdge);
  }
}

/// Two slivers of a by two of b, four tiles of sums.
struct Slivers {
  const float *a[2], *b[2];
};

void multiply_slivers(const Slivers& s, int64_t lanes, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t at = 0; at < lanes * kEdge; at += kTile) {
    _tile_loadd(4, s.a[0] + at, kRow);
    _tile_loadd(6, s.b[0] + at, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, s.b[1] + at, kRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, s.a[1] + at, kRow);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kRow);
  _tile_stored(1, sums + kTile, kRow);
  _tile_stored(2, sums + 2 * kTile, kRow);
  _tile_stored(3, sums + 3 * kTile, kRow);
  settle_memory();
}

/// What of a tile of sums is the product's goes there.
void put_tile(const SliverProduct& p, int64_t row, int64_t column, const float* sums) {
  for (int64_t i = 0; i < kEdge && row + i < p.rows; ++i) {
    float* to = p.to + (row + i) * p.stride + column;
    if (column + kEdge <= p.columns) {
      const Register before = p.add ? load<Register>(to) : Register{};
      store(to, fused(before, p.factor, load<Register>(sums + i * kEdge)));
      continue;
    }
    for (int64_t j = 0; column + j < p.columns; ++j) {
      to[j] = __builtin_fmaf(p.factor, sums[i * kEdge + j], p.add ? to[j] : 0);
    }
  }
}

/// From `first`, which is a sliver's first row or column, this sliver and the next, or this one twice where it is the last.
[[gnu::always_inline]] inline void two_slivers(const void* operand, int64_t first, int64_t count, int64_t lanes,
                                               const float* (&slivers)[2]) {
  slivers[0] = static_cast<const float*>(operand) + first * lanes;
  slivers[1] = first + kEdge < count ? slivers[0] + kEdge * lanes : slivers[0];
}

void multiply_block(const SliverProduct& p) {
  const int64_t lanes = lanes_of(p.depth);
  alignas(64) float sums[4 * kTile];
  settle_memory();
  _tile_loadconfig(&kTileShapes);
  for (int64_t column = 0; column < p.columns; column += 2 * kEdge) {
    Slivers slivers;
    two_slivers(p.b, column, p.columns, lanes, slivers.b);
    for (int64_t row = 0; row < p.rows; row += 2 * kEdge) {
      two_slivers(p.a, row, p.rows, lanes, slivers.a);
      multiply_slivers(slivers, lanes, sums);
      for (int64_t tile = 0; tile < 4; ++tile)
        put_tile(p, row + tile / 2 * kEdge, column + tile % 2 * kEdge, sums + tile * kTile);
    }
  }
  _tile_release();
}

}  // namespace

const ProductLoops& product_loops_amx() {
  static constexpr ProductLoops kLoops{DType::kBFloat16,        Sums::kFused,  kEdge, kEdge, lay_out_a,
                                       lay_out_in_pairs<kEdge>, multiply_block};
  return kLoops;
}

}  // namespace aliquot
