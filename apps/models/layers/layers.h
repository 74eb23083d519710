#pragma once
// The layers of the reference models on a host, computed by all threads of a rank. Sizes are in elements; matrices are
// row-major. No function allocates memory, and results do not depend on the number of threads.

#include <cstdint>

#include "apps/models/layers/fp8_layers.h"
#include "kernels/formats/host_device.h"
#include "kernels/layers/row_loops.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

void layer_norm_forward(ThreadPool& pool, const LayerNormRows& a);
void layer_norm_backward(ThreadPool& pool, const LayerNormBackwardRows& a);
/// Ignores a.begin and a.end: computes all columns.
void layer_norm_backward_weights(ThreadPool& pool, const LayerNormWeightColumns& a);

/// y = x * weight + bias. The bias may be null.
struct Linear {
  ConstValues weight, bias;
  int64_t rows = 0, inputs = 0, outputs = 0;
  bool outputs_first = false;  // true: weight is [outputs, inputs]; false: [inputs, outputs]
  float* scratch = nullptr;    // scratch memory of the matrix product: see product.h
  // Elements from one row to the next, of the output, the input and the weight. 0 means that rows are contiguous.
  int64_t output_stride = 0, input_stride = 0, weight_stride = 0;
  float factor = 1.0f;  // multiplies the products with the weight, in forward and backward
  Fp8Linear fp8 = {};

  /// The part of this layer with inputs or outputs [first, first + count). The caller moves the pointers to x and y.
  Linear with_inputs(int64_t first, int64_t count) const;
  Linear with_outputs(int64_t first, int64_t count) const;
};

/// to = factor * x * weight + bias + residual. The residual may be null and must not be `to`. With an output_stride
/// there must be no residual.
void linear_forward(ThreadPool& pool, const Linear& linear, ConstValues x, const float* residual, Values to);
/// to += factor * x * weight. Ignores the bias.
void linear_forward_add(ThreadPool& pool, const Linear& linear, ConstValues x, Values to);
/// Computes the gradient of x: to = from * weight^T. With `add`, to += from * weight^T.
void linear_backward_input(ThreadPool& pool, const Linear& linear, ConstValues from, Values to, bool add = false);

/// The gradients of a linear layer's weight and bias. Backward overwrites them, or adds to them if `add` is set.
struct LinearGradients {
  Values weight, bias;  // bias is null if the layer has none
  bool add = false;
};
void linear_backward_weights(ThreadPool& pool, const Linear& linear, ConstValues x, ConstValues from,
                             const LinearGradients& to);

void sum_columns(ThreadPool& pool, const ColumnSums& a);

/// Ignores the fields of HeadNormsWeight that select a range: computes all elements.
void head_norms_forward(ThreadPool& pool, const HeadNorms& a);
void head_norms_backward(ThreadPool& pool, const HeadNormsBackward& a);
void head_norms_backward_weight(ThreadPool& pool, const HeadNormsWeight& a);

void gelu_forward(ThreadPool& pool, Values to, ConstValues x, int64_t count);
/// gradient *= gelu'(x).
void gelu_backward(ThreadPool& pool, Values gradient, ConstValues x, int64_t count);
/// to = silu(gate) * up.
void gated_forward(ThreadPool& pool, Values to, const GatedElements& elements);
/// Overwrites gate and up with their gradients.
void gated_backward(ThreadPool& pool, ConstValues from, const GatedElements& elements);

/// Rotary position embedding, in place: rotates the first `heads` heads of every row by the angles of its position.
struct Rotary {
  int64_t batch = 0, sequence = 0, heads = 0, head_width = 0, stride = 0;
  const float *cosines = nullptr, *sines = nullptr;  // `sequence` rows of head_width / 2 elements
  bool back = false;                                 // rotate by the opposite angles, for gradients
};
void rotate(ThreadPool& pool, const Rotary& rotary, Values x);

void convert(ThreadPool& pool, Values to, ConstValues from, int64_t count);
/// Sets all elements to 0.
void clear(ThreadPool& pool, Values to, int64_t count);
/// to += from.
void add(ThreadPool& pool, float* to, const float* from, int64_t count);

/// An embedding: forward copies the table's row of each token, backward sums gradients by token.
void embedding_forward(ThreadPool& pool, const EmbeddingRows& embedding, ConstValues table, float* to);
/// Adds the rows of `from` to the table rows of their tokens. With add = false, first zeroes the table gradient.
void embedding_backward(ThreadPool& pool, const EmbeddingRows& embedding, const float* from, Values table_gradient,
                        bool add = true);

/// Learned positions: adds to each row the table's row of its position in its sequence. `first_row` is the index of the
/// first of the `rows` rows in the micro-batch.
struct Positions {
  int64_t rows = 0, sequence = 0, width = 0, context = 0, first_row = 0;

  /// The first of the rows that has this position. Other rows with this position follow every `sequence` rows.
  ALIQUOT_HOST_DEVICE int64_t row_of(int64_t position) const {
    return (position + sequence - first_row % sequence) % sequence;
  }
};
void positions_forward(ThreadPool& pool, const Positions& positions, ConstValues table, const float* from, float* to);
/// Sums the gradients of the rows by position. With add = false, first zeroes the table gradient.
void positions_backward(ThreadPool& pool, const Positions& positions, const float* from, Values table_gradient,
                        bool add);

}  // namespace aliquot
