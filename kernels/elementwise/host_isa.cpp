#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/elementwise/host_loops.h"
#include "kernels/elementwise/host_loops_tables.h"
#include "kernels/system/error.h"

namespace aliquot {

Isa choose_isa(const char* requested_name, Isa highest) {
  if (requested_name == nullptr || *requested_name == '\0') return highest;
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (requested_name == name(isa)) return isa < highest ? isa : highest;
  }
  throw UsageError("invalid value '" + std::string(requested_name) +
                   "' for ALIQUOT_ISA: expected plain, avx2 or avx512");
}

std::span<const Isa> available_isas() { return processor_isas(); }

Isa best_isa() {
  static const Isa isa = choose_isa(std::getenv("ALIQUOT_ISA"), processor_isas().back());
  return isa;
}

const HostLoops& host_loops(Isa isa) {
  for (const Isa available : processor_isas()) {
    if (available == isa) return processor_loops(isa);
  }
  throw std::logic_error("host_loops: this processor does not support " + std::string(name(isa)));
}

}  // namespace aliquot
