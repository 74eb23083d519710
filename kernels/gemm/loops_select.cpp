#include "kernels/gemm/loops.h"

namespace aliquot {

#if defined(__x86_64__)
namespace {

// A processor may have AVX2 without FMA.
Isa fused_isa() {
  static const Isa isa = __builtin_cpu_supports("fma") != 0 ? best_isa() : Isa::kPlain;
  return isa;
}

}  // namespace

const ProductLoops& product_loops(Isa isa, Sums sums) {
  switch (isa) {
    case Isa::kAvx512: return product_loops_avx512(sums);
    case Isa::kAvx2: return product_loops_avx2(sums);
    case Isa::kPlain: break;
  }
  return product_loops_plain(sums);
}

const ProductLoops& product_loops(Sums sums) {
  return product_loops(sums == Sums::kFused ? fused_isa() : best_isa(), sums);
}

const SmallLoops& small_loops(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return small_loops_avx512();
    case Isa::kAvx2: return small_loops_avx2();
    case Isa::kPlain: break;
  }
  return small_loops_plain();
}

const SmallLoops& small_loops() {
  static const SmallLoops& best = small_loops(fused_isa());
  return best;
}

const ProductLoops& product_loops(Bf16Products how) {
  switch (how) {
    case Bf16Products::kTiles: return product_loops_amx();
    case Bf16Products::kPairs: return product_loops_avx512_bf16();
    case Bf16Products::kWidened: break;
  }
  return product_loops();
}
#else
const ProductLoops& product_loops(Isa, Sums sums) { return product_loops_plain(sums); }
const ProductLoops& product_loops(Sums sums) { return product_loops_plain(sums); }
const SmallLoops& small_loops() { return small_loops_plain(); }
const SmallLoops& small_loops(Isa) { return small_loops_plain(); }
const ProductLoops& product_loops(Bf16Products) { return product_loops_plain(Sums::kFused); }
#endif

}  // namespace aliquot
