#pragma once
// Inside the room, and for tests: encoding on the calling thread.

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// Elements [begin, end) of all parts, counted through; `begin` and `end` are multiples of kBlockElements.
void encode_blocks(const Encode& args, int64_t begin, int64_t end);
void decode_blocks(const Decode& args, int64_t begin, int64_t end);

}  // namespace aliquot
