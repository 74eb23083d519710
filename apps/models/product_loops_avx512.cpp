namespace aliquot {
namespace {

constexpr int kWidth = 16, kRows = 8;

}  // namespace
}  // namespace aliquot

#include "apps/models/product_fused_avx512.inc"
#include "apps/models/product_loops.inc"

namespace aliquot {

const ProductLoops& product_loops_avx512() { return kProductLoops; }

}  // namespace aliquot
