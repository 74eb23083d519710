#pragma once
// The host loops of layers, except matrix products. They run on one thread and compute in fp32. Arrays
// declared as Values may hold fp32, bf16 or fp16.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/values.h"
#include "kernels/layers/layer_rows.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {

/// SwiGLU: silu(gate) * up. Backward reads gate and up and overwrites them with their gradients.
struct GatedElements {
  Values gate, up;  // both with the same type as `to` and `from`
  int64_t count = 0;
};

/// One row of a head. The loop rotates each pair of elements (i, i + half) by the angle of the pair or, with `back`, by
/// the opposite angle.
struct RotatedHead {
  Values x;
  const float *cosines = nullptr, *sines = nullptr;
  int64_t half = 0;
  bool back = false;
};

/// to[r, c] = from[r, c] + bias[c]. `from` or `bias` may be null, which means zero. Rows of `from` are `width` elements
/// apart, rows of `to` are `stride` elements apart (0: `width`). `to` may be `from` if `stride` is 0 or `width`.
struct BiasRows {
  Values to;
  const float* from = nullptr;
  ConstValues bias;
  int64_t rows = 0, width = 0, stride = 0;
};

/// Assigns the sum over r of from[r, c] to to[c], for columns c in [begin, end). With `add`, adds the sum to to[c]
/// instead. Rows of `from` are `width` elements apart.
struct ColumnSums {
  Values to;
  ConstValues from;
  int64_t rows = 0, width = 0, begin = 0, end = 0;
  bool add = false;
  LayerScratch scratch = {};  // on a GPU: column_sums_scratch_elements()
};

/// RMS norms of the first `heads` heads of each row of `x`. A head has `head_width` elements, and rows are `stride`
/// elements apart. All heads have the same weight. Copies the `copied` elements after the heads. `to` has the layout of
/// `x`. `x`, `to` and `weight` have one type. `rstd` has `heads` values for each row.
struct HeadNorms {
  ConstValues x, weight;
  Values to;
  float* rstd = nullptr;
  int64_t rows = 0, heads = 0, head_width = 0, stride = 0, copied = 0;
  float epsilon = 1e-5f;
};
/// Overwrites the gradient of the output, `gradient`, with that of x.
struct HeadNormsBackward {
  ConstValues x, weight;
  Values gradient;  // with the layout and the type of x
  const float* rstd = nullptr;
  int64_t rows = 0, heads = 0, head_width = 0, stride = 0;
};
/// Assigns the gradient of the weight to `to`, for its elements [begin, end). Sums heads and rows from first to last.
struct HeadNormsWeight {
  ConstValues x, gradient;  // `gradient` is that of the output
  const float* rstd = nullptr;
  float* to = nullptr;
  int64_t rows = 0, heads = 0, head_width = 0, stride = 0, begin = 0, end = 0;
  int64_t rstd_stride = 0;    // elements from one row of `rstd` to the next; 0: `heads`
  LayerScratch scratch = {};  // on a GPU: column_sums_scratch_elements() for rows * heads rows
};

/// Statistics of each row over the tiles so far: the maximum and the sum of exp(logit - maximum). Their initial values
/// are -infinity and 0. `tile_maxima` are the row maxima of the last tile.
struct RunningRowStatistics {
  float *maxima = nullptr, *sums = nullptr;
  float* tile_maxima = nullptr;  // may be null
};

/// A strip of attention scores. Rows are queries first_query, first_query + 1, ...; columns are the `keys` keys from
/// first_key on. A query attends to the keys up to its own position. With a window, it attends to the last `window` of
/// them.
struct ScoreStrip {
  float* scores = nullptr;
  int64_t stride = 0, rows = 0, keys = 0, first_query = 0, first_key = 0;
  int64_t window = 0;  // 0: none
};

/// The loops for one instruction set. All implementations give the same bits: they use sixteen fp32 lanes, add lanes in
/// the same order and use no fused multiply-add. NaN and infinite inputs give NaN or infinite results, except that a
/// score or logit of -infinity gets a probability of about 0.
struct RowLoops {
  void (*layer_norm)(const LayerNormRows&);
  void (*layer_norm_backward)(const LayerNormBackwardRows&);
  void (*layer_norm_weights)(const LayerNormWeightColumns&);
  void (*add_bias)(const BiasRows&);
  void (*sum_columns)(const ColumnSums&);
  void (*head_norms)(const HeadNorms&);
  void (*head_norms_backward)(const HeadNormsBackward&);
  void (*head_norms_weight)(const HeadNormsWeight&);
  /// to = gelu(x), by the tanh approximation. Both have one type.
  void (*gelu)(Values to, ConstValues x, int64_t count);
  /// gradient *= gelu'(x). Both have one type.
  void (*gelu_backward)(Values gradient, ConstValues x, int64_t count);
  void (*gated)(Values to, const GatedElements&);
  void (*gated_backward)(ConstValues from, const GatedElements&);
  void (*rotate)(const RotatedHead&);
  void (*convert)(Values to, ConstValues from, int64_t count);
  void (*add)(Values to, ConstValues from, int64_t count);
  float (*dot)(const float* a, ConstValues b, int64_t count);
  /// Overwrites scores with probabilities, which are zero for keys to which the query does not attend. log_sums[r] =
  /// log of the sum of exp(score).
  void (*softmax)(const ScoreStrip&, float* log_sums);
  /// Overwrites scores with probabilities, using the log_sums of softmax().
  void (*recompute_softmax)(const ScoreStrip&, const float* log_sums);
  /// gradients = probabilities * (gradients - deltas[row]), or zero for keys to which the query does not attend.
  /// `gradients` has the strip's stride.
  void (*softmax_backward)(const ScoreStrip& probabilities, float* gradients, const float* deltas);
  /// Updates the running statistics of each row with a tile.
  void (*accumulate_logits)(const LogitTile&, const RunningRowStatistics&);
  /// to = logits - tile_maxima[row], rounded to 16 bits. The rounding error is small for logits near the maximum. It is
  /// larger for logits far below the maximum, but their probability is nearly 0.
  void (*keep_logits)(const LogitTile& to, const float* logits, int64_t logits_stride, const float* tile_maxima);
  /// Overwrites logits with their gradients: (exp(logit - maximum - log_sum) - [entry == target]) * factor. In rows
  /// whose target is negative, the factor is 0. If keep_logits() subtracted a value from the logits, the maxima must be
  /// reduced by the same value.
  void (*loss_backward)(const LogitTile&, const LossRows&);
  // The functions of the same names in split_layers.h.
  void (*split_norm_statistics)(const LayerNormRows&, float* part, const RowRange&);
  void (*split_norm_forward)(const LayerNormRows&, const SplitParts&, const RowRange&);
  void (*split_norm_backward_statistics)(const LayerNormBackwardRows&, float* part, const RowRange&);
  void (*split_norm_backward)(const LayerNormBackwardRows&, const SplitParts&, const RowRange&);
};

/// The loops for `isa`, which must be one of available_isas().
const RowLoops& row_loops(Isa isa);
/// The loops for best_isa().
const RowLoops& row_loops();

// The implementations, each in its own source file. Call row_loops() instead.
const RowLoops& row_loops_plain();
const RowLoops& row_loops_avx2();
const RowLoops& row_loops_avx512();

}  // namespace aliquot
