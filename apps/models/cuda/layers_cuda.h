#pragma once
// The layers of the reference models on a GPU. layers.h and attention.h define the result of each layer in a function
// of the same name; a function here enqueues that computation. Statistics and sums are fp32 for arrays of any type. The
// order of all sums is fixed.

#include <cstdint>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "apps/models/layers/row_loops.h"
#include "kernels/device/device.h"

namespace aliquot::cuda {

void layer_norm_forward(Stream& stream, const LayerNormRows& a);
void layer_norm_backward(Stream& stream, const LayerNormBackwardRows& a);
void layer_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& a);
void sum_columns(Stream& stream, const ColumnSums& a);

void head_norms_forward(Stream& stream, const HeadNorms& a);
void head_norms_backward(Stream& stream, const HeadNormsBackward& a);
void head_norms_backward_weight(Stream& stream, const HeadNormsWeight& a);

void add_bias(Stream& stream, const BiasRows& a);
void gelu_forward(Stream& stream, Values to, ConstValues x, int64_t count);
void gelu_backward(Stream& stream, Values gradient, ConstValues x, int64_t count);
void gated_forward(Stream& stream, Values to, const GatedElements& a);
void gated_backward(Stream& stream, ConstValues from, const GatedElements& a);
void rotate(Stream& stream, const Rotary& a, Values x);

void embedding_forward(Stream& stream, const Embedding& a, ConstValues table, float* to);
/// The tokens of a batch in ascending order, and the row of each. Rows with the same token are in ascending order.
struct TokenSortedRows {
  const int32_t *tokens = nullptr, *rows = nullptr;
};
void embedding_backward(Stream& stream, const Embedding& a, const TokenSortedRows& sorted, const float* from,
                        Values table_gradient, bool add);
void positions_forward(Stream& stream, const Positions& a, ConstValues table, const float* from, float* to);
void positions_backward(Stream& stream, const Positions& a, const float* from, Values table_gradient, bool add);

/// The widest head that attention supports, in elements.
inline constexpr int64_t kWidestHead = 256;
void attention_forward(Stream& stream, const AttentionForward& a);
void attention_backward(Stream& stream, const AttentionBackward& a);

// The operations that loss_tiles.h requires of `loops`.
void initialize_logits(Stream& stream, const RunningRowStatistics& rows, float* target_logits, int64_t count);
void accumulate_logits(Stream& stream, const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                       float* target_logits);
void keep_logits(Stream& stream, const LogitTile& to, const LogitTile& computed, const float* tile_maxima);
/// `tile_maxima` are the values that keep_logits() subtracted from the logits; null if it was not called. `rows.maxima`
/// are the maxima of the original logits. (RowLoops::loss_backward() expects them minus `tile_maxima`.)
void logits_backward(Stream& stream, const LogitTile& tile, const LossRows& rows, const float* tile_maxima);
void combine_parts(Stream& stream, const LossBuffers& to, const LossParts& parts, int64_t count);
/// *sum = the sum over rows of log_sum + (maximum - logit of the target), added in a fixed order.
void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum);

}  // namespace aliquot::cuda
