#include <immintrin.h>

namespace aliquot {
namespace {

constexpr int kWidth = 8, kRows = 4;
constexpr int kSmallRows = 6, kSmallRegisters = 2;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/packing.inc"

namespace aliquot {
namespace {

[[gnu::always_inline]] inline Register fused_multiply_add(Register to, float factor, Register x) {
  return (Register)_mm256_fmadd_ps((__m256)x, _mm256_set1_ps(factor), (__m256)to);
}

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/loops.inc"
#include "kernels/gemm/small.inc"

namespace aliquot {

const ProductLoops& product_loops_avx2(SumRounding sums) { return loops_for(sums); }
const SmallLoops& small_loops_avx2() { return kSmallLoops; }

}  // namespace aliquot
