namespace aliquot {
namespace {

constexpr int kWidth = 16, kRows = 8;
constexpr int kSmallRows = 6, kSmallRegisters = 4;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/fused_avx512.inc"
#include "kernels/gemm/loops.inc"
#include "kernels/gemm/small.inc"

namespace aliquot {

const ProductLoops& product_loops_avx512(SumRounding sums) { return loops_for(sums); }
const SmallLoops& small_loops_avx512() { return kSmallLoops; }

}  // namespace aliquot
