#pragma once
// The loops of the host models that are not matrix products, over rows, on one thread.

#include <cstdint>

#include "kernels/host_loops.h"

namespace aliquot {

/// Rows of `width` elements, one after the other, from `x` through a layer norm with per-row statistics kept for
/// backward.
struct LayerNormRows {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;  // 1 / sqrt(variance + 1e-5)
  float* to = nullptr;
  int64_t rows = 0, width = 0;
};

/// to = or += the gradient of `x`, given that of the output. `to` may be `from`.
struct LayerNormBackwardRows {
  const float* x = nullptr;
  const float* weight = nullptr;
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
  float* weight = nullptr;
  float* bias = nullptr;
  int64_t rows = 0, width = 0, begin = 0, end = 0;
  bool add = false;
};

/// A strip of attention scores: rows are queries first_query, first_query + 1, ..., columns are keys from 0. A query
/// sees the keys up to itself.
struct ScoreStrip {
  float* scores = nullptr;
  int64_t stride = 0, rows = 0, keys = 0, first_query = 0;
};

/// A tile of logits, `rows` x `columns`, whose first column is vocabulary entry `first_entry`.
struct LogitTile {
  float* logits = nullptr;
  int64_t stride = 0, rows = 0, columns = 0, first_entry = 0;
};

/// What is known of each row of logits once all tiles were taken: its maximum, the log of the sum of exp(logit -
/// maximum) (apart, because their sum would round away what small probabilities need) and its target.
struct LossRows {
  const float* maxima = nullptr;
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
  /// to[r, c] = from[r, c] + bias[c]; `from` may be null (zero) and may be `to`.
  void (*add_bias)(float* to, const float* from, const float* bias, int64_t rows, int64_t width);
  /// to[c] = or += the sum over rows of from[r, c], for columns [begin, end).
  void (*sum_columns)(float* to, const float* from, int64_t rows, int64_t width, int64_t begin, int64_t end, bool add);
  /// x += bias, then to = gelu(x), by tanh's approximation.
  void (*bias_gelu)(float* to, float* x, const float* bias, int64_t rows, int64_t width);
  void (*gelu)(float* to, const float* x, int64_t count);
  /// gradient *= gelu'(x).
  void (*gelu_backward)(float* gradient, const float* x, int64_t count);
  void (*add)(float* to, const float* from, int64_t count);
  float (*dot)(const float* a, const float* b, int64_t count);
  /// Scores become probabilities, zero beyond each query; log_sums[r] = log of the sum of exp(score).
  void (*softmax)(const ScoreStrip&, float* log_sums);
  /// Scores become probabilities again, from the log_sums kept.
  void (*softmax_again)(const ScoreStrip&, const float* log_sums);
  /// gradients = probabilities * (gradients - deltas[row]), zero beyond each query. `gradients` has the strip's stride.
  void (*softmax_backward)(const ScoreStrip& probabilities, float* gradients, const float* deltas);
  /// Takes a tile into each row's running maximum and sum of exp(logit - maximum). Start with -infinity and 0.
  void (*take_logits)(const LogitTile&, float* maxima, float* sums);
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
