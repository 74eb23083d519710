#pragma once
// The layers of the host models over all threads of a rank. Sizes in elements; matrices lie row after row. Nothing
// allocates, and no result depends on the number of threads.

#include <cstdint>

#include "apps/models/row_loops.h"
#include "kernels/thread_pool.h"

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
};

/// to = x weight + bias + residual; the residual may be null and may not be `to`.
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
void convert(ThreadPool& pool, Values to, ConstValues from, int64_t count);

/// Rows of an embedding table looked up by token, and the gradients of table rows summed by token.
struct Embedding {
  const int32_t* tokens = nullptr;
  int64_t rows = 0, width = 0, entries = 0;
};
void embedding_forward(ThreadPool& pool, const Embedding& embedding, ConstValues table, float* to);
/// table gradient += from, row by row. The table's gradient was set before.
void embedding_backward(ThreadPool& pool, const Embedding& embedding, const float* from, Values table_gradient);

/// Learned positions: to[b, t] = from[b, t] + table[t].
struct Positions {
  int64_t batch = 0, sequence = 0, width = 0, context = 0;
};
void positions_forward(ThreadPool& pool, const Positions& positions, ConstValues table, const float* from, float* to);
/// Sums over sequences of the batch; assigning zeroes the rows from `sequence` to `context`.
void positions_backward(ThreadPool& pool, const Positions& positions, const float* from, Values table_gradient,
                        bool add);

}  // namespace aliquot
