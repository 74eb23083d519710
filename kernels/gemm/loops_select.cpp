#include "kernels/gemm/loops.h"

namespace aliquot {

#if defined(__x86_64__)
const ProductLoops& product_loops(Isa isa, Sums sums) {
  switch (isa) {
    case Isa::kAvx512: return product_loops_avx512(sums);
    case Isa::kAvx2: return product_loops_avx2(sums);
    case Isa::kPlain: break;
  }
  return product_loops_plain(sums);
}

const ProductLoops& product_loops(Sums sums) {
  // A processor may have AVX2 without FMA.
  static const Isa fused = __builtin_cpu_supports("fma") != 0 ? best_isa() : Isa::kPlain;
  return product_loops(sums == Sums::kFused ? fused : best_isa(), sums);
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
const ProductLoops& product_loops(Bf16Products) { return product_loops_plain(Sums::kFused); }
#endif

}  // namespace aliquot
