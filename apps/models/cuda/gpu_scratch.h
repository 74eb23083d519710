#pragma once
// What the layers of a GPU take beside their arrays: asked by the layers themselves, and by plans where there is no GPU.

#include <cstdint>

#include "apps/models/layers/attention.h"

namespace aliquot {

/// cuBLASLt's workspace: the size it is tuned for on the newest GPUs.
inline constexpr int64_t kGpuProductScratchBytes = int64_t{32} << 20;

/// Floats of one attention: a row's delta each, in backward.
inline int64_t gpu_attention_scratch_elements(const AttentionShape& shape) {
  return shape.batch * shape.heads * shape.sequence;
}

}  // namespace aliquot
