#pragma once
// Causal self-attention of the host models: strips of scores, never a whole T x T matrix. Computed in fp32, whatever the
// arrays hold.

#include <cstdint>

#include "kernels/formats/host_device.h"
#include "kernels/formats/values.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Rows of queries, keys and values lie in one matrix of `stride` elements a row: `heads` x `head_width` of queries, then
/// `kv_heads` x `head_width` each of keys and values, which heads / kv_heads heads in a row share. The output has heads x
/// head_width elements a row.
struct AttentionShape {
  int64_t batch = 0, sequence = 0, heads = 0, head_width = 0, kv_heads = 0;

  ALIQUOT_HOST_DEVICE int64_t width() const { return heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t kv_width() const { return kv_heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t stride() const { return width() + 2 * kv_width(); }
};

/// Queries that share one strip of scores.
inline constexpr int64_t kAttentionQueries = 64;

/// Scratch elements that one part (thread) needs, forward or backward, for arrays of that type.
int64_t attention_scratch_elements(const AttentionShape& shape, DType type);

/// to = softmax(queries x keys^T / sqrt(head_width)) x values, each query seeing itself and what came before.
struct AttentionForward {
  AttentionShape shape;
  ConstValues qkv;
  Values to;                  // of qkv's type
  float* log_sums = nullptr;  // batch x heads x sequence, kept for backward
  float* scratch = nullptr;   // attention_scratch_elements() for each thread of the pool
};
void attention_forward(ThreadPool& pool, const AttentionForward& a);

/// Assigns the gradient of qkv, given that of the output. Bits do not depend on the number of threads.
struct AttentionBackward {
  AttentionShape shape;
  ConstValues qkv, output;
  const float* log_sums = nullptr;
  const float* from = nullptr;  // gradient of the output
  Values to;                    // gradient of qkv, of its type
  float* scratch = nullptr;
};
void attention_backward(ThreadPool& pool, const AttentionBackward& a);

}  // namespace aliquot
