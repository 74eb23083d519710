namespace aliquot {
namespace {

#if defined(__aarch64__)
constexpr int kWidth = 4, kRows = 8;
#else
constexpr int kWidth = 4, kRows = 4;
#endif
constexpr int kSmallRows = 4, kSmallRegisters = 2;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/packing.inc"
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace aliquot {
namespace {

// All arm64 processors have fused multiply-add, but not all x86-64 processors. Without it, the product is rounded
// before the addition.
[[gnu::always_inline]] inline Register fused_multiply_add(Register to, float factor, Register x) {
#if defined(__aarch64__)
  return (Register)vfmaq_n_f32((float32x4_t)to, (float32x4_t)x, factor);
#else
  return to + factor * x;
#endif
}

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/loops.inc"
#include "kernels/gemm/small.inc"

namespace aliquot {

const ProductLoops& product_loops_plain(SumRounding sums) { return loops_for(sums); }
const SmallLoops& small_loops_plain() { return kSmallLoops; }

}  // namespace aliquot
