#pragma once
// Internal declarations for the source files of host_loops.h. This file defines no functions, so files that are
// compiled with AVX flags may include it. Functions that they share are defined in host_loops_plain.cpp.

#include <span>

#include "kernels/elementwise/host_loops.h"

namespace aliquot {

const HostLoops& plain_loops();
const HostLoops& avx2_loops();
const HostLoops& avx512_loops();

/// Implement available_isas() and host_loops() for one processor family (host_isa_plain.cpp, host_isa_x86.cpp).
std::span<const Isa> processor_isas();
const HostLoops& processor_loops(Isa isa);

/// Returns the result that best_isa() would have if `highest` were the highest instruction set of the processor and
/// `requested_name` the value of ALIQUOT_ISA. If `requested_name` is null, ALIQUOT_ISA is not set.
Isa choose_isa(const char* requested_name, Isa highest);

/// TreeSum::bases as pointer and count, because files with AVX flags must not instantiate functions of std::span.
struct TreeSources {
  const std::byte* const* bases;
  int64_t count;
};
TreeSources tree_sources(const TreeSum& sum);

/// Eight bytes filled with copies of `value`, converted to `dtype`.
uint64_t fill_pattern(DType dtype, float value);

}  // namespace aliquot
