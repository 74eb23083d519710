#pragma once
// Sizes of the scratch memory of layers on a GPU. Plans need them on machines without a GPU too.

#include <cstdint>

#include "apps/models/layers/attention.h"

namespace aliquot {

/// The scratch of attention in fp32 elements. Backward stores a delta for each query of each head: see sum_deltas().
inline int64_t gpu_attention_scratch_elements(const AttentionShape& shape) {
  return shape.batch * shape.heads * shape.sequence;
}

}  // namespace aliquot
