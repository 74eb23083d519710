#pragma once
// Inside the room: what the files of host_loops.h have from one another. Holds no code, so files with AVX flags may
// include it; what they would call inline functions for is a function of the plain file here.

#include <span>

#include "kernels/elementwise/host_loops.h"

namespace aliquot {

const HostLoops& plain_loops();
const HostLoops& avx2_loops();
const HostLoops& avx512_loops();

/// What available_isas() says; a file per processor family.
std::span<const Isa> processor_isas();
const HostLoops& processor_loops(Isa isa);

/// What best_isa() says, where ALIQUOT_ISA is `requested_name` (null where it is not set) and the processor's highest is `highest`.
Isa choose_isa(const char* requested_name, Isa highest);

/// TreeSum::bases, taken apart.
struct TreeSources {
  const std::byte* const* bases;
  int64_t count;
};
TreeSources tree_sources(const TreeSum& sum);

/// Eight bytes that repeat the element `value` of that type.
uint64_t fill_pattern(DType dtype, float value);

}  // namespace aliquot
