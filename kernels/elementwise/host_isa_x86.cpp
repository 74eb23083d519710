#include <array>
#include <cpuid.h>

#include "kernels/elementwise/host_loops_tables.h"

namespace aliquot {
namespace {

// Asks cpuid for F16C, because __builtin_cpu_supports() of older GCC versions does not know the name "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// __builtin_cpu_supports() also checks that the operating system saves the wide registers.
std::size_t isa_count() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !has_f16c()) return 1;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? 3 : 2;
}

}  // namespace

std::span<const Isa> processor_isas() {
  static constexpr std::array<Isa, 3> kIsas{Isa::kPlain, Isa::kAvx2, Isa::kAvx512};
  static const std::size_t count = isa_count();
  return std::span(kIsas).first(count);
}

const HostLoops& processor_loops(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return plain_loops();
    case Isa::kAvx2: return avx2_loops();
    case Isa::kAvx512: return avx512_loops();
  }
  return plain_loops();
}

}  // namespace aliquot
