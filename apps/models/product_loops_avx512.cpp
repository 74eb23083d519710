#include <immintrin.h>

namespace aliquot {
namespace {

constexpr int kWidth = 16, kRows = 8;

}  // namespace
}  // namespace aliquot

#include "apps/models/product_layout.inc"

namespace aliquot {
namespace {

[[gnu::always_inline]] inline Register fused(Register to, float factor, Register x) {
  return (Register)_mm512_fmadd_ps((__m512)x, _mm512_set1_ps(factor), (__m512)to);
}

}  // namespace
}  // namespace aliquot

#include "apps/models/product_loops.inc"

namespace aliquot {

const ProductLoops& product_loops_avx512() { return kProductLoops; }

}  // namespace aliquot
