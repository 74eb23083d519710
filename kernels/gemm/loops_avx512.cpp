namespace aliquot {
namespace {

constexpr int kWidth = 16, kRows = 8;

}  // namespace
}  // namespace aliquot

#include "kernels/gemm/fused_avx512.inc"
#include "kernels/gemm/loops.inc"

namespace aliquot {

const ProductLoops& product_loops_avx512(Sums sums) { return loops_for(sums); }

}  // namespace aliquot
