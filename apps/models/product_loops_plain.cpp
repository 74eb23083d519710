namespace aliquot {
namespace {

#if defined(__aarch64__)
constexpr int kWidth = 4, kRows = 8;
#else
constexpr int kWidth = 4, kRows = 4;
#endif

}  // namespace
}  // namespace aliquot

#include "apps/models/product_layout.inc"

namespace aliquot {
namespace {

// Fused where every processor of the kind can, as arm64's; elsewhere products are rounded on their own.
[[gnu::always_inline]] inline Register fused(Register to, float factor, Register x) { return to + factor * x; }

}  // namespace
}  // namespace aliquot

#include "apps/models/product_loops.inc"

namespace aliquot {

const ProductLoops& product_loops_plain() { return kProductLoops; }

}  // namespace aliquot
