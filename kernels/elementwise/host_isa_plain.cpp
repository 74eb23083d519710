#include "kernels/elementwise/host_loops_tables.h"

namespace aliquot {

std::span<const Isa> processor_isas() {
  static constexpr Isa kIsas[] = {Isa::kPlain};
  return kIsas;
}

const HostLoops& processor_loops(Isa) { return plain_loops(); }

}  // namespace aliquot
