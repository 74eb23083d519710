namespace aliquot {
namespace {

constexpr int kWidth = 8, kRows = 4;

}  // namespace
}  // namespace aliquot

#include "apps/models/product_loops.inc"

namespace aliquot {

const ProductLoops& product_loops_avx2() { return kProductLoops; }

}  // namespace aliquot
