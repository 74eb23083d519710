#pragma once
// Sizes of the scratch memory and of the tiles of layers on a GPU. Plans need them on machines without a GPU too.

#include <algorithm>
#include <cstdint>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/loss.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/layers/sum_divisions.h"

namespace aliquot {

/// Sums over rows use the scratch of matrix products in blocks, and scratch of this size in other uses.
inline int64_t gpu_row_sum_scratch_elements(int64_t rows, int64_t width) {
  constexpr int64_t kWeightAndBias = 2;
  return std::max(column_sums_scratch_elements(rows, kWeightAndBias * width), embedding_scratch_elements(rows, width));
}

/// The scratch of attention in fp32 elements. Backward stores a delta for each query of each head: see sum_deltas().
inline int64_t gpu_attention_scratch_elements(const AttentionShape& shape) {
  return shape.batch * shape.heads * shape.sequence;
}

/// In 16 bits, tiles have about as many bytes as a tile in fp32 and a rounded tile had on a host. Fewer tiles transfer
/// the gradient of the hidden states less often.
inline LogitTiles gpu_logit_tiles(DType compute) {
  constexpr int64_t kRowBytes = 128;
  return {.entries = compute == DType::kFloat32 ? kLossTileEntries : int64_t{6400},
          .row_multiple = kRowBytes / element_bytes(compute)};
}

}  // namespace aliquot
