#pragma once
// The measured peak rate of the multiply-add instructions that matrix products use.

#include <cstdint>
#include <optional>

#include "kernels/formats/dtype.h"

namespace aliquot {

/// A loop of independent multiply-adds, without memory access. `operations` counts multiplications and additions.
struct PeakLoop {
  int64_t operations;
  void (*run)();
};

/// Returns the loop for products of the given operands on this processor, with the instructions that the library
/// selects: fused multiply-add for fp32, and AMX, AVX512_BF16 or (for widened operands) fused multiply-add for bf16.
/// Returns nullopt if there is no such loop.
std::optional<PeakLoop> peak_loop(DType operands);

}  // namespace aliquot
