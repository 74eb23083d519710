// Products of bf16 matrices with AMX. An AMX tile is a register that holds a matrix of 16 rows of 64 bytes. One
// instruction multiplies two AMX tiles and adds the product to a third one.
#include <immintrin.h>

namespace aliquot {
namespace {

constexpr int kWidth = 16, kLaneMultiple = 16;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/fused_avx512.inc"
#include "kernels/gemm/pairs.inc"

namespace aliquot {
namespace {

constexpr int kTileEdge = 16;  // number of rows of an AMX tile, and of lanes in a row
constexpr int kTileLanes = kTileEdge * kTileEdge;
constexpr int64_t kTileRowBytes = kTileEdge * sizeof(float);

/// The operand of ldtilecfg. All AMX tiles have full size, because operands are padded with zeros.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {kTileRowBytes, kTileRowBytes, kTileRowBytes, kTileRowBytes,
                            kTileRowBytes, kTileRowBytes, kTileRowBytes, kTileRowBytes};
  uint8_t rows[16] = {kTileEdge, kTileEdge, kTileEdge, kTileEdge, kTileEdge, kTileEdge, kTileEdge, kTileEdge};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kTileConfig;

/// Compilers do not know that AMX instructions read and write memory.
[[gnu::always_inline]] inline void compiler_barrier() { __asm__ volatile("" ::: "memory"); }

/// Packs an AMX tile of the left operand, 16 rows of 16 lanes. In an AMX tile of the right operand, rows and lanes are
/// exchanged.
void pack_a_tile(const OperandStrip& strip, int64_t row, int64_t lane, float* to) {
  const bool whole = row + kTileEdge <= strip.count && 2 * (lane + kTileEdge) <= strip.depth;
  if (whole && !strip.depth_major) {
    for (int64_t i = 0; i < kTileEdge; ++i)
      std::memcpy(to + i * kTileEdge, elements(strip) + (row + i) * strip.stride + 2 * lane, kTileRowBytes);
    return;
  }
  if (!whole) {
    for (int64_t i = 0; i < kTileEdge; ++i) {
      for (int64_t k = 0; k < kTileEdge; ++k) to[i * kTileEdge + k] = pair_at(strip, row + i, 2 * (lane + k));
    }
    return;
  }
  Register square[kTileEdge];
#pragma GCC unroll 16
  for (int64_t k = 0; k < kTileEdge; ++k) {
    float pairs[kTileEdge];
    interleave_steps<kTileEdge>(elements(strip) + 2 * (lane + k) * strip.stride + row, strip.stride, pairs);
    square[k] = load<Register>(pairs);
  }
  transpose<kTileEdge / 2, kTileEdge>(square);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileEdge; ++i) store(to + i * kTileEdge, square[i]);
}

void pack_a(const OperandStrip& strip, void* to_lanes) {
  auto* to = static_cast<float*>(to_lanes);
  const int64_t lanes = lane_count(strip.depth);
  for (int64_t row = 0; row < strip.count; row += kTileEdge) {
    for (int64_t lane = 0; lane < lanes; lane += kTileEdge)
      pack_a_tile(strip, row, lane, to + row * lanes + lane * kTileEdge);
  }
}

/// Two slivers of the left operand (a) and two of the right operand (b). Their product is four AMX tiles of sums.
struct SliverPairs {
  const float *a[2], *b[2];
};

void multiply_slivers(const SliverPairs& s, int64_t lanes, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t at = 0; at < lanes * kTileEdge; at += kTileLanes) {
    _tile_loadd(4, s.a[0] + at, kTileRowBytes);
    _tile_loadd(6, s.b[0] + at, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, s.b[1] + at, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, s.a[1] + at, kTileRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + kTileLanes, kTileRowBytes);
  _tile_stored(2, sums + 2 * kTileLanes, kTileRowBytes);
  _tile_stored(3, sums + 3 * kTileLanes, kTileRowBytes);
  compiler_barrier();
}

/// Writes an AMX tile of sums to the result, without the padding.
void store_tile(const SliverProduct& p, int64_t row, int64_t column, const float* sums) {
  for (int64_t i = 0; i < kTileEdge && row + i < p.rows; ++i) {
    float* to = p.to + (row + i) * p.stride + column;
    if (column + kTileEdge <= p.columns) {
      const Register before = p.add ? load<Register>(to) : Register{};
      store(to, fused_multiply_add(before, p.factor, load<Register>(sums + i * kTileEdge)));
      continue;
    }
    for (int64_t j = 0; column + j < p.columns; ++j) {
      to[j] = __builtin_fmaf(p.factor, sums[i * kTileEdge + j], p.add ? to[j] : 0);
    }
  }
}

/// Gets the sliver that begins at row or column `first`, and the next sliver. If there is no next sliver, gets the same
/// sliver twice.
[[gnu::always_inline]] inline void get_sliver_pair(const void* operand, int64_t first, int64_t count, int64_t lanes,
                                                   const float* (&slivers)[2]) {
  slivers[0] = static_cast<const float*>(operand) + first * lanes;
  slivers[1] = first + kTileEdge < count ? slivers[0] + kTileEdge * lanes : slivers[0];
}

void multiply_block(const SliverProduct& p) {
  const int64_t lanes = lane_count(p.depth);
  alignas(64) float sums[4 * kTileLanes];
  compiler_barrier();
  _tile_loadconfig(&kTileConfig);
  for (int64_t column = 0; column < p.columns; column += 2 * kTileEdge) {
    SliverPairs slivers;
    get_sliver_pair(p.b, column, p.columns, lanes, slivers.b);
    for (int64_t row = 0; row < p.rows; row += 2 * kTileEdge) {
      get_sliver_pair(p.a, row, p.rows, lanes, slivers.a);
      multiply_slivers(slivers, lanes, sums);
      for (int64_t tile = 0; tile < 4; ++tile)
        store_tile(p, row + tile / 2 * kTileEdge, column + tile % 2 * kTileEdge, sums + tile * kTileLanes);
    }
  }
  _tile_release();
}

}  // namespace

const ProductLoops& product_loops_amx() {
  static constexpr ProductLoops kLoops{
      DType::kBFloat16, SumRounding::kFused, kTileEdge, kTileEdge, pack_a, pack_strip_in_pairs<kTileEdge>,
      multiply_block};
  return kLoops;
}

}  // namespace aliquot
