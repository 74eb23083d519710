#pragma once
// The arguments of norms, embeddings and losses. Matrices are row-major. Arrays declared as Values may hold fp32, bf16
// or fp16.

#include <cstdint>

#include "kernels/formats/values.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Scratch memory of a layer on a GPU, aligned to 16 bytes. The layer may overwrite it until its work has ended. With
/// less memory than it needs, the layer runs on fewer threads. The result has the same bits. Hosts ignore this field.
struct LayerScratch {
  float* data = nullptr;
  int64_t elements = 0;
};

/// A layer norm of contiguous rows of `width` elements. Stores `mean` and `rstd` of each row for backward. `weight`,
/// `bias` and `to` have the same type. If `mean` is null, here and below, the layer is an RMS norm, which subtracts no
/// mean and has no bias.
struct LayerNormRows {
  const float* x = nullptr;
  ConstValues weight, bias;
  float* mean = nullptr;
  float* rstd = nullptr;  // 1 / sqrt(variance + epsilon)
  Values to;
  int64_t rows = 0, width = 0;
  float epsilon = 1e-5f;
};

/// Assigns the gradient of `x` to `to`. With `add`, adds the gradient to the values in `to` instead. `from` is the
/// gradient of the output and may be the same array as `to`.
struct LayerNormBackwardRows {
  const float* x = nullptr;
  ConstValues weight;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* from = nullptr;
  float* to = nullptr;
  int64_t rows = 0, width = 0;
  bool add = false;
};

/// Columns [begin, end) of the gradients of a layer norm's weight and bias. Rows are summed from first to last.
struct LayerNormWeightColumns {
  const float* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* from = nullptr;
  Values weight, bias;  // both with the same type
  int64_t rows = 0, width = 0, begin = 0, end = 0;
  bool add = false;
  LayerScratch scratch = {};  // on a GPU: split_norm_scratch_elements()
};

/// An embedding: forward copies the table's row of each token, backward sums gradients by token. The table has the rows
/// of the tokens [first_entry, first_entry + entries). Forward gives zeros for other tokens, and backward ignores them.
struct EmbeddingRows {
  const int32_t* tokens = nullptr;
  int64_t rows = 0, width = 0, entries = 0, first_entry = 0;
  LayerScratch scratch = {};  // only in backward on a GPU: split_embedding_scratch_elements()
};

/// A target of this value does not count: the loss of its row is 0, and so is the gradient of its logits.
inline constexpr int32_t kIgnoredTarget = -1;

/// A tile of logits, `rows` x `columns`, whose first column is vocabulary entry `first_entry`. Rows are `stride`
/// elements apart.
struct LogitTile {
  Values logits;
  int64_t stride = 0, rows = 0, columns = 0, first_entry = 0;
};

/// Statistics of each row of logits over the whole vocabulary: the maximum, the log of the sum of exp(logit - maximum),
/// and the target. Maximum and log are separate because the rounding of their sum would distort small probabilities.
struct LossRows {
  const float* maxima = nullptr;
  const float* log_sums = nullptr;
  const int32_t* targets = nullptr;
  float factor = 1.0f;
  const float* factor_on_gpu = nullptr;  // only on GPUs: if not null, replaces `factor`
};

}  // namespace aliquot
#pragma GCC visibility pop
