namespace aliquot {
namespace {

#if defined(__aarch64__)
constexpr int kWidth = 4, kRows = 8;
#else
constexpr int kWidth = 4, kRows = 4;
#endif

}  // namespace
}  // namespace aliquot

#include "apps/models/product_loops.inc"

namespace aliquot {

const ProductLoops& product_loops_plain() { return kProductLoops; }

}  // namespace aliquot
