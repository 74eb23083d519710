#pragma once
// Causal self-attention on hosts, with or without a sliding window. Computes scores in strips of queries and never
// stores a full T x T matrix. Skips the keys before the window of a strip. Computes in fp32 for arrays of any type.

#include <cstdint>

#include "kernels/formats/host_device.h"
#include "kernels/formats/values.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Queries, keys and values are in one matrix with a row of stride() elements for each token. A row has `heads` x
/// `head_width` elements of queries, then `kv_heads` x `head_width` each of keys and values. heads / kv_heads
/// consecutive heads share one key and value head. A row of the output has heads x head_width elements.
///
/// A query attends to its own position and all earlier ones. With a window, it attends to `window` positions at most:
/// its own and the last ones before it.
struct AttentionShape {
  int64_t batch = 0, sequence = 0, heads = 0, head_width = 0, kv_heads = 0;
  int64_t window = 0;  // 0: none

  ALIQUOT_HOST_DEVICE int64_t width() const { return heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t kv_width() const { return kv_heads * head_width; }
  ALIQUOT_HOST_DEVICE int64_t stride() const { return width() + 2 * kv_width(); }
  /// The first key to which the query attends.
  ALIQUOT_HOST_DEVICE int64_t first_key(int64_t query) const {
    return window == 0 || query < window ? 0 : query - window + 1;
  }
  /// One past the last query that attends to the key.
  ALIQUOT_HOST_DEVICE int64_t end_query(int64_t key) const {
    return window == 0 || sequence - key < window ? sequence : key + window;
  }
};

/// The number of queries in one strip of scores.
inline constexpr int64_t kAttentionQueries = 64;

/// Scratch that one thread needs, in forward or backward, in fp32 elements. `type` is the type of the arrays.
int64_t attention_scratch_elements(const AttentionShape& shape, DType type);

/// Rows of 2 x kv_width() elements, the keys and then the values, for all positions of one sequence. The first query is
/// at the position `first_query`. There are rows up to the position of the last query.
struct CachedRows {
  ConstValues rows;
  int64_t first_query = 0;
};

/// to = softmax(queries x keys^T / sqrt(head_width)) x values. If `cached` has rows, the keys and values are there and
/// not in `qkv`, and the batch is 1.
struct AttentionForward {
  AttentionShape shape;
  ConstValues qkv;
  Values to;                  // with the type of qkv
  float* log_sums = nullptr;  // batch x heads x sequence elements, saved for backward
  float* scratch = nullptr;   // attention_scratch_elements() for each thread of the pool
  CachedRows cached = {};

  /// The shape with the number of keys as the length of the sequence. Scratch must suffice for it.
  ALIQUOT_HOST_DEVICE AttentionShape shape_of_keys() const {
    AttentionShape keys = shape;
    keys.sequence += cached.first_query;
    return keys;
  }
};
void attention_forward(ThreadPool& pool, const AttentionForward& a);

/// Assigns the gradient of qkv, given the gradient of the output. Gives the same bits for any number of threads.
struct AttentionBackward {
  AttentionShape shape;
  ConstValues qkv, output;
  const float* log_sums = nullptr;
  float* from = nullptr;  // gradient of the output; GPUs overwrite it
  Values to;              // gradient of qkv, with the type of qkv
  float* scratch = nullptr;
};
void attention_backward(ThreadPool& pool, const AttentionBackward& a);

}  // namespace aliquot
