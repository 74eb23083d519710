#pragma once
// The layers of the reference models on a GPU. layers.h and attention.h define the result of each layer in a function
// of the same name; a function here enqueues that computation. Statistics and sums are fp32 for arrays of any type. The
// order of all sums is fixed.

#include <cstdint>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "kernels/device/device.h"
#include "kernels/layers/layers_cuda.h"

namespace aliquot::cuda {

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

void positions_forward(Stream& stream, const Positions& a, ConstValues table, const float* from, float* to);
void positions_backward(Stream& stream, const Positions& a, const float* from, Values table_gradient, bool add);

/// The widest head that attention supports, in elements.
inline constexpr int64_t kWidestHead = 256;
void attention_forward(Stream& stream, const AttentionForward& a);
void attention_backward(Stream& stream, const AttentionBackward& a);

/// *sum = the sum over rows of log_sum + (maximum - logit of the target), added in a fixed order.
void reduce_loss(Stream& stream, const LossBuffers& buffers, const int32_t* targets, const float* target_logits,
                 int64_t count, double* sum);

}  // namespace aliquot::cuda
