// Products of bf16 with AVX512_BF16, whose instructions add two products to each lane.
#include <immintrin.h>

namespace aliquot {
namespace {

constexpr int kWidth = 16, kRows = 8, kLaneMultiple = 1;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/fused_avx512.inc"
#include "kernels/gemm/pairs.inc"

namespace aliquot {
namespace {

constexpr int kRegisters = 3;  // number of registers that hold one row of a sliver of `b`
constexpr int kColumns = kRegisters * kWidth;

struct PairSums {
  static constexpr bool kStartsFromOutput = false;
  [[gnu::always_inline]] static Register add_product(Register sums, float a, Register b) {
    return (Register)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_ps(a), (__m512bh)b);
  }
};

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/slivers.inc"

namespace aliquot {
namespace {

void multiply_block(const SliverProduct& p) { multiply_with<PairSums>(p, NothingAhead()); }

}  // namespace

const ProductLoops& product_loops_avx512_bf16() {
  static constexpr ProductLoops kLoops{DType::kBFloat16, SumRounding::kFused,        kRows,
                                       kColumns,         pack_strip_in_pairs<kRows>, pack_strip_in_pairs<kColumns>,
                                       multiply_block};
  return kLoops;
}

}  // namespace aliquot
