#include "bench/product_peaks.h"

#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/bf16_products.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aliquot {
namespace {

constexpr int64_t kRounds = 1'000'000;

#if defined(__x86_64__)

/// Each instruction depends on its own earlier result only, so enough registers hide the latency.
constexpr int kRegisters = 12;

/// Makes the compiler keep the value, and assume that it changes.
template <class Register>
[[gnu::always_inline]] inline void keep(Register& value) {
  __asm__ volatile("" : "+v"(value));
}

[[gnu::target("avx2,fma")]] void fma_256() {
  __m256 sums[kRegisters] = {}, factor = _mm256_set1_ps(0.5f);
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(factor, factor, sum);
      keep(sum);
    }
  }
}

[[gnu::target("avx512f")]] void fma_512() {
  __m512 sums[kRegisters] = {}, factor = _mm512_set1_ps(0.5f);
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(factor, factor, sum);
      keep(sum);
    }
  }
}

[[gnu::target("avx512f,avx512bf16")]] void pairs_512() {
  __m512 sums[kRegisters] = {};
  const auto factor = __m512bh(_mm512_set1_epi16(0x3f00));
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, factor, factor);
      keep(sum);
    }
  }
}

/// The operand of ldtilecfg: eight AMX tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int kTileProducts = 4;

[[gnu::target("amx-tile,amx-bf16")]] void tiles() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t round = 0; round < kRounds; ++round) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
}

std::optional<PeakLoop> fp32_loop() {
  const Isa isa = best_isa();
  if (isa == Isa::kAvx512) return PeakLoop{kRounds * kRegisters * 16 * 2, fma_512};
  if (isa == Isa::kAvx2) return PeakLoop{kRounds * kRegisters * 8 * 2, fma_256};
  return std::nullopt;
}

std::optional<PeakLoop> bf16_loop() {
  const Bf16ProductMethod method = selected_bf16_product_method();
  if (method == Bf16ProductMethod::kTiles) return PeakLoop{kRounds * kTileProducts * 16 * 16 * 32 * 2, tiles};
  if (method == Bf16ProductMethod::kPairs) return PeakLoop{kRounds * kRegisters * 32 * 2, pairs_512};
  return fp32_loop();
}

#else

std::optional<PeakLoop> fp32_loop() { return std::nullopt; }
std::optional<PeakLoop> bf16_loop() { return std::nullopt; }

#endif

}  // namespace

std::optional<PeakLoop> peak_loop(DType operands) { return operands == DType::kBFloat16 ? bf16_loop() : fp32_loop(); }

}  // namespace aliquot
