#include "kernels/gemm/loops.h"

namespace aliquot {

#if defined(__x86_64__)
namespace {

// Returns best_isa() if the processor has FMA, and otherwise kPlain: a processor may have AVX2 without FMA.
Isa isa_with_fma() {
  static const Isa isa = __builtin_cpu_supports("fma") != 0 ? best_isa() : Isa::kPlain;
  return isa;
}

}  // namespace

const ProductLoops& product_loops(Isa isa, SumRounding sums) {
  switch (isa) {
    case Isa::kAvx512: return product_loops_avx512(sums);
    case Isa::kAvx2: return product_loops_avx2(sums);
    case Isa::kPlain: break;
  }
  return product_loops_plain(sums);
}

const ProductLoops& product_loops(SumRounding sums) {
  return product_loops(sums == SumRounding::kFused ? isa_with_fma() : best_isa(), sums);
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
  static const SmallLoops& best = small_loops(isa_with_fma());
  return best;
}

const ProductLoops& product_loops(Bf16ProductMethod method) {
  switch (method) {
    case Bf16ProductMethod::kTiles: return product_loops_amx();
    case Bf16ProductMethod::kPairs: return product_loops_avx512_bf16();
    case Bf16ProductMethod::kWidened: break;
  }
  return product_loops();
}
#else
const ProductLoops& product_loops(Isa, SumRounding sums) { return product_loops_plain(sums); }
const ProductLoops& product_loops(SumRounding sums) { return product_loops_plain(sums); }
const SmallLoops& small_loops() { return small_loops_plain(); }
const SmallLoops& small_loops(Isa) { return small_loops_plain(); }
const ProductLoops& product_loops(Bf16ProductMethod) { return product_loops_plain(SumRounding::kFused); }
#endif

}  // namespace aliquot
