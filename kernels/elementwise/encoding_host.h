#pragma once
// Quantization on the calling thread. For this module and tests only.

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Processes elements [begin, end), numbered over all parts. Both limits must be multiples of kBlockElements.
void encode_blocks(const Encode& args, int64_t begin, int64_t end);
void decode_blocks(const Decode& args, int64_t begin, int64_t end);

}  // namespace aliquot
