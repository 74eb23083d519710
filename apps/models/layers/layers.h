#pragma once
// The layers of the host models over all threads of a rank. Sizes in elements; matrices lie row after row. Nothing
// allocates, and no result depends on the number of threads.

#include <cstdint>

#include "apps/models/layers/row_loops.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

void layer_norm_forward(ThreadPool& pool, const LayerNormRows& a);
void layer_norm_backward(ThreadPool& pool, const LayerNormBackwardRows& a);
/// begin and end are set here.
void layer_norm_backward_weights(ThreadPool& pool, const LayerNormWeightColumns& a);

/// y = x weight + bias. The bias may be null.
struct Linear {
  ConstValues weight, bias;
  int64_t rows = 0, inputs = 0, outputs = 0;
  bool outputs_first = false;  // weight is [outputs, inputs], else [inputs, outputs]
  float* scratch = nullptr;    // of products: see product.h
  int64_t output_stride = 0;   // elements from one row of outputs to the next, where that is more than their number
};

/// to = x weight + bias + residual; the residual may be null and may not be `to`. One of several in wider rows has neither
/// residual nor bias.
void linear_forward(ThreadPool& pool, const Linear& linear, ConstValues x, const float* residual, Values to);
/// to = or += from weight^T, the gradient of x.
void linear_backward_input(ThreadPool& pool, const Linear& linear, ConstValues from, Values to, bool add = false);

/// Where the gradients of a linear layer's weight and bias go, and whether they are added to what is there.
struct LinearGradients {
  Values weight, bias;  // no bias where the layer has none
  bool add = false;
};
void linear_backward_weights(ThreadPool& pool, const Linear& linear, ConstValues x, ConstValues from,
                             const LinearGradients& to);

void gelu_forward(ThreadPool& pool, Values to, ConstValues x, int64_t count);
/// gradient *= gelu'(x).
void gelu_backward(ThreadPool& pool, Values gradient, ConstValues x, int64_t count);
/// to = silu(gate) * up.
void gated_forward(ThreadPool& pool, Values to, const GatedElements& elements);
/// gate and up become their gradients.
void gated_backward(ThreadPool& pool, ConstValues from, const GatedElements& elements);

/// Rotary positions: the first `heads` heads of every row are turned by the position's angles, in place.
struct Rotary {
  int64_t batch = 0, sequence = 0, heads = 0, head_width = 0, stride = 0;
  const float *cosines = nullptr, *sines = nullptr;  // sequence x head_width / 2
  bool back = false;                                 // by the opposite angles, as gradients are
};
void rotate(ThreadPool& pool, const Rotary& rotary, Values x);

void convert(ThreadPool& pool, Values to, ConstValues from, int64_t count);

/// Rows of an embedding table looked up by token, and the gradients of table rows summed by token.
struct Embedding {
  const int32_t* tokens = nullptr;
  int64_t rows = 0, width = 0, entries = 0;
};
void embedding_forward(ThreadPool& pool, const Embedding& embedding, ConstValues table, float* to);
/// table gradient += from, row by row; or = where nothing was there before, entries that are no row's zero.
void embedding_backward(ThreadPool& pool, const Embedding& embedding, const float* from, Values table_gradient,
                        bool add = true);

/// Learned positions: to[b, t] = from[b, t] + table[t].
struct Positions {
  int64_t batch = 0, sequence = 0, width = 0, context = 0;
};
void positions_forward(ThreadPool& pool, const Positions& positions, ConstValues table, const float* from, float* to);
/// Sums over sequences of the batch; assigning zeroes the rows from `sequence` to `context`.
void positions_backward(ThreadPool& pool, const Positions& positions, const float* from, Values table_gradient,
                        bool add);

}  // namespace aliquot
