#pragma once
// Layers whose vocabulary or width the ranks of a tensor group divide. Each rank computes its part of a layer. A loss
// and a norm also need statistics of all parts: each rank computes those of its part, the ranks gather them with a
// collective of CollectiveKind::kGather, and the next function combines them. All ranks get the same bits.
//
// Each function has two forms. Without a stream, it computes on the calling thread, and pointers are to host memory.
// Several threads may compute different ranges of rows at the same time. With a stream, a function enqueues the work on
// that stream of a GPU, and pointers are to memory of the GPU. The second form throws UnavailableError in a build
// without CUDA.

#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/formats/values.h"
#include "kernels/layers/layer_rows.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Rows [begin, end) of a batch. The default means all rows.
struct RowRange {
  int64_t begin = 0, end = -1;
};

/// Gives zeros for tokens of other ranks. So the sum over the ranks is the output of the whole table.
void split_embedding_forward(const EmbeddingRows& embedding, ConstValues table, float* to, RowRange rows = {});
void split_embedding_forward(Stream& stream, const EmbeddingRows& embedding, ConstValues table, float* to);

/// Adds columns [begin, end) of the rows of `from` to the gradient of the table, in the order of the rows. Several
/// threads may compute different columns.
void split_embedding_backward(const EmbeddingRows& embedding, const float* from, Values table_gradient, int64_t begin,
                              int64_t end);

/// The tokens of a batch in ascending order, and the row of each. Rows with the same token are in ascending order.
struct TokenSortedRows {
  const int32_t *tokens = nullptr, *rows = nullptr;
};
/// Sorts the tokens of a batch in host memory. All spans have the same size. Allocates a temporary array.
void sort_rows_by_token(std::span<const int32_t> tokens, std::span<int32_t> sorted_tokens, std::span<int32_t> rows);
/// The elements of EmbeddingRows::scratch that the next function uses.
int64_t split_embedding_scratch_elements(int64_t rows, int64_t width);
/// Adds all columns. `sorted` is in memory of the GPU. `embedding.tokens` is not read. The bits do not depend on how
/// ranks divide the table.
void split_embedding_backward(Stream& stream, const EmbeddingRows& embedding, const TokenSortedRows& sorted,
                              const float* from, Values table_gradient);

/// The statistics of all parts of a loss or of a norm. Part i is at statistics + i * split_part_elements(rows).
struct SplitParts {
  int count = 1;
  float* statistics = nullptr;
};
/// A part has three arrays of `rows` values.
inline int64_t split_part_elements(int64_t rows) { return 3 * rows; }

/// Computes the statistics of this rank's logits: their maxima; the sums of exp(logit - maximum); the logits of the
/// targets, or 0 where another rank has the target.
void split_loss_statistics(const LogitTile& logits, const int32_t* targets, float* part, RowRange rows = {});
void split_loss_statistics(Stream& stream, const LogitTile& logits, const int32_t* targets, float* part);

/// The loss over the whole vocabulary. `sum` receives the sum over rows of -log p(target), without the rows whose
/// target is kIgnoredTarget. `maxima` and `log_sums` are the fields of LossRows, which backward needs.
struct SplitLoss {
  SplitParts parts;
  int64_t rows = 0;
  const int32_t* targets = nullptr;
  float *maxima = nullptr, *log_sums = nullptr;
  double* sum = nullptr;  // with a stream: in pinned host memory or memory of the GPU
};
void split_loss_forward(const SplitLoss& loss);
void split_loss_forward(Stream& stream, const SplitLoss& loss);

/// Overwrites this rank's logits with the gradients of factor * loss.
void split_loss_backward(const LogitTile& logits, const LossRows& loss, RowRange rows = {});
void split_loss_backward(Stream& stream, const LogitTile& logits, const LossRows& loss);

/// Computes the statistics of this rank's columns of `x` for a norm: sums, or 0 for an RMS norm; sums of squared
/// differences from the mean of the rank's columns, or from 0; numbers of columns. Reads `x`, `rows` and `width`, which
/// are those of the rank, and whether `mean` is null.
void split_norm_statistics(const LayerNormRows& norm, float* part, RowRange rows = {});
void split_norm_statistics(Stream& stream, const LayerNormRows& norm, float* part);
/// Computes `mean` and `rstd` of whole rows, and this rank's columns of `to`.
void split_norm_forward(const LayerNormRows& norm, const SplitParts& parts, RowRange rows = {});
void split_norm_forward(Stream& stream, const LayerNormRows& norm, const SplitParts& parts);

/// Computes the statistics of this rank's columns for the gradient of `x`: with the gradient g of the normalized row n,
/// sums of g; sums of g n; numbers of columns.
void split_norm_backward_statistics(const LayerNormBackwardRows& norm, float* part, RowRange rows = {});
void split_norm_backward_statistics(Stream& stream, const LayerNormBackwardRows& norm, float* part);
/// Computes this rank's columns of the gradient of `x`.
void split_norm_backward(const LayerNormBackwardRows& norm, const SplitParts& parts, RowRange rows = {});
void split_norm_backward(Stream& stream, const LayerNormBackwardRows& norm, const SplitParts& parts);
/// The elements of LayerNormWeightColumns::scratch that the next function uses on a GPU.
int64_t split_norm_scratch_elements(int64_t rows, int64_t width);
/// Computes this rank's columns of the gradients of weight and bias. With a stream, computes all columns and ignores
/// `begin` and `end`.
void split_norm_backward_weights(const LayerNormWeightColumns& norm);
void split_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& norm);

}  // namespace aliquot
#pragma GCC visibility pop
