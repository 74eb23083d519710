#include "apps/models/product_loops.h"

namespace aliquot {

#if defined(__x86_64__)
const ProductLoops& product_loops(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return product_loops_avx512();
    case Isa::kAvx2: return product_loops_avx2();
    case Isa::kPlain: break;
  }
  return product_loops_plain();
}

const ProductLoops& product_loops() {
  // A processor may have the one without the other.
  static const ProductLoops& best = product_loops(__builtin_cpu_supports("fma") != 0 ? best_isa() : Isa::kPlain);
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
const ProductLoops& product_loops(Isa) { return product_loops_plain(); }
const ProductLoops& product_loops() { return product_loops_plain(); }
const ProductLoops& product_loops(Bf16Products) { return product_loops_plain(); }
#endif

}  // namespace aliquot
