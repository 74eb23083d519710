#pragma once
// The loops of the host models that are not matrix products, over rows, on one thread. Everything is computed in fp32;
// arrays declared as Values may hold bf16 or fp16.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/values.h"

namespace aliquot {

/// Rows of `width` elements, one after the other, from `x` through a layer norm with per-row statistics kept for
/// backward. weight, bias and to are of one type. Where mean is null, here and below, it is an RMS norm, which takes no mean
/// off and has no bias.
struct LayerNormRows {
  const float* x = nullptr;
  ConstValues weight, bias;
  float* mean = nullptr;
  float* rstd = nullptr;  // 1 / sqrt(variance + epsilon)
  Values to;
  int64_t rows = 0, width = 0;
  float epsilon = 1e-5f;
};

/// to = or += the gradient of `x`, given that of the output. `to` may be `from`.
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

/// Columns [begin, end) of the gradients of a layer norm's weight and bias, summed over rows from first to last.
struct LayerNormWeightColumns {
  const float* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* from = nullptr;
  Values weight, bias;  // of one type
  int64_t rows = 0, width = 0, begin = 0, end = 0;
  bool add = false;
};

/// Elements through SwiGLU: silu(gate) * up. Backward needs gate and up again, and assigns their gradients in their place.
struct GatedElements {
  Values gate, up;  // and `to` and `from`: of one type
  int64_t count = 0;
};

/// One head's row turned by an angle a pair of elements, i and i + half; `back`: by the opposite angles.
struct RotatedHead {
  Values x;
  const float *cosines = nullptr, *sines = nullptr;
  int64_t half = 0;
  bool back = false;
};

/// to[r, c] = from[r, c] + bias[c]; either may be null (zero), and `from` may be `to`.
struct BiasRows {
  Values to;
  const float* from = nullptr;
  ConstValues bias;
  int64_t rows = 0, width = 0;
};

/// to[c] = or += the sum over rows of from[r, c], for columns [begin, end).
struct ColumnSums {
  Values to;
  ConstValues from;
  int64_t rows = 0, width = 0, begin = 0, end = 0;
  bool add = false;
};

/// What is known of each row while tiles are taken: its maximum and sum of exp(logit - maximum) so far, -infinity and 0
/// at the start; and the maximum of the last tile taken.
struct RunningRowStatistics {
  float *maxima = nullptr, *sums = nullptr;
  float* tile_maxima = nullptr;  // may be null
};

/// A strip of attention scores: rows are queries first_query, first_query + 1, ..., columns are keys from 0. A query
/// sees the keys up to itself.
struct ScoreStrip {
  float* scores = nullptr;
  int64_t stride = 0, rows = 0, keys = 0, first_query = 0;
};

/// A tile of logits, `rows` x `columns`, whose first column is vocabulary entry `first_entry`.
struct LogitTile {
  Values logits;
  int64_t stride = 0, rows = 0, columns = 0, first_entry = 0;
};

/// What is known of each row of logits once all tiles were taken: its maximum, the log of the sum of exp(logit -
/// maximum) (apart, because their sum would round away what small probabilities need) and its target.
struct LossRows {
  const float* maxima = nullptr;  // less what was taken from the tile's logits already
  const float* log_sums = nullptr;
  const int32_t* targets = nullptr;
  float factor = 1.0f;
};

/// One implementation a kind of processor; all give the same bits: sixteen lanes in fp32, folded in halves, no
/// contraction. Values that are not finite stay so.
struct RowLoops {
  void (*layer_norm)(const LayerNormRows&);
  void (*layer_norm_backward)(const LayerNormBackwardRows&);
  void (*layer_norm_weights)(const LayerNormWeightColumns&);
  void (*add_bias)(const BiasRows&);
  void (*sum_columns)(const ColumnSums&);
  /// to = gelu(x), by tanh's approximation. Both of one type.
  void (*gelu)(Values to, ConstValues x, int64_t count);
  /// gradient *= gelu'(x). Both of one type.
  void (*gelu_backward)(Values gradient, ConstValues x, int64_t count);
  void (*gated)(Values to, const GatedElements&);
  void (*gated_backward)(ConstValues from, const GatedElements&);
  void (*rotate)(const RotatedHead&);
  void (*convert)(Values to, ConstValues from, int64_t count);
  void (*add)(Values to, ConstValues from, int64_t count);
  float (*dot)(const float* a, ConstValues b, int64_t count);
  /// Scores become probabilities, zero beyond each query; log_sums[r] = log of the sum of exp(score).
  void (*softmax)(const ScoreStrip&, float* log_sums);
  /// Scores become probabilities again, from the log_sums kept.
  void (*recompute_softmax)(const ScoreStrip&, const float* log_sums);
  /// gradients = probabilities * (gradients - deltas[row]), zero beyond each query. `gradients` has the strip's stride.
  void (*softmax_backward)(const ScoreStrip& probabilities, float* gradients, const float* deltas);
  /// Takes a tile, in fp32, into what is known of each row.
  void (*accumulate_logits)(const LogitTile&, const RunningRowStatistics&);
  /// to = logits - tile_maxima[row], rounded. In 16 bits that keeps what matters: a logit near the largest is kept nearly
  /// exactly, and one far below it has next to no probability to be wrong about.
  void (*keep_logits)(const LogitTile& to, const float* logits, int64_t logits_stride, const float* tile_maxima);
  /// Logits become their gradients: (exp(logit - maximum - log_sum) - [entry == target]) * factor.
  void (*loss_backward)(const LogitTile&, const LossRows&);
};

/// Those of one kind of processor, one of available_isas().
const RowLoops& row_loops(Isa isa);
/// Those of best_isa().
const RowLoops& row_loops();

// One a source file; for the two above alone.
const RowLoops& row_loops_plain();
const RowLoops& row_loops_avx2();
const RowLoops& row_loops_avx512();

}  // namespace aliquot
