#pragma once
// Causal self-attention on hosts. Computes scores in strips of queries and never stores a full T x T matrix. Computes
// in fp32 for arrays of any type.

#include <cstdint>

#include "kernels/formats/host_device.h"
#include "kernels/formats/values.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Queries, keys and values are in one matrix with a row of stride() elements for each token. A row has `heads` x
/// `head_width` elements of queries, then `kv_heads` x `head_width` each of keys and values. heads / kv_heads
/// consecutive heads share one key and value head. A row of the output has heads x head_width elements.
struct AttentionShape {
  int64_t batch = 0, sequence = 0, heads = 0, head_width = 0, kv_heads = 0;

  ALIQUOT_HOST_DEVICE int64_t width() const { return heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t kv_width() const { return kv_heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t stride() const { return width() + 2 * kv_width(); }
};

/// The number of queries in one strip of scores.
inline constexpr int64_t kAttentionQueries = 64;

/// Scratch that one thread needs, in forward or backward, in fp32 elements. `type` is the type of the arrays.
int64_t attention_scratch_elements(const AttentionShape& shape, DType type);

/// to = softmax(queries x keys^T / sqrt(head_width)) x values. Each query attends to its own position and all earlier
/// ones.
struct AttentionForward {
  AttentionShape shape;
  ConstValues qkv;
  Values to;                  // with the type of qkv
  float* log_sums = nullptr;  // batch x heads x sequence elements, saved for backward
  float* scratch = nullptr;   // attention_scratch_elements() for each thread of the pool
};
void attention_forward(ThreadPool& pool, const AttentionForward& a);

/// Assigns the gradient of qkv, given the gradient of the output. Gives the same bits for any number of threads.
struct AttentionBackward {
  AttentionShape shape;
  ConstValues qkv, output;
  const float* log_sums = nullptr;
  const float* from = nullptr;  // gradient of the output
  Values to;                    // gradient of qkv, with the type of qkv
  float* scratch = nullptr;
};
void attention_backward(ThreadPool& pool, const AttentionBackward& a);

}  // namespace aliquot
