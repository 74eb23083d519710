#include "optim/isa.h"
namespace aliquot {
std::span<const Isa> available_isas() {
  static constexpr Isa kAll[] = {Isa::kPlain, Isa::kAvx2, Isa::kAvx512};
  __builtin_cpu_init();
  return std::span(kAll).first(__builtin_cpu_supports("avx512bw") ? 3 : __builtin_cpu_supports("avx2") ? 2 : 1);
}
Isa best_isa() { return available_isas().back(); }
}  // namespace aliquot
