#include "apps/models/cuda/fused_attention_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "apps/models/cuda/gpu_scratch.h"

namespace aliquot {
namespace {

constexpr int64_t kWidestHeadOfAll = 128;  // that cuDNN supports on all GPUs

int64_t aligned(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/// Heads in rows of `stride` elements, the first of them `offset` elements after the begin of a row.
AttentionTensor in_rows(const AttentionShape& s, int64_t heads, int64_t stride, int64_t offset) {
  return {.extents = {s.batch, heads, s.sequence, s.head_width},
          .strides = {s.sequence * stride, s.head_width, stride, 1},
          .offset = offset};
}

/// Whether `bytes` exceed the limit of cuDNN's frontend for the gradients of the scores. As in the frontend, an empty
/// value means 0, and negative and invalid values set no limit.
bool exceeds_limit(int64_t bytes) {
  const char* text = std::getenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT");
  if (text == nullptr) return false;
  char* end = nullptr;
  const long long limit = std::strtoll(text, &end, 10);
  return *end == '\0' && limit >= 0 && bytes > limit;
}

}  // namespace

FusedAttentionProblem fused_attention_problem(AttentionPass pass, const AttentionShape& s, DType type) {
  return {
      .pass = pass,
      .type = type,
      .window = s.window < s.sequence ? s.window : 0,
      .scale = 1.0f / std::sqrt(static_cast<float>(s.head_width)),
      .queries = in_rows(s, s.heads, s.stride(), 0),
      .keys = in_rows(s, s.kv_heads, s.stride(), s.width()),
      .values = in_rows(s, s.kv_heads, s.stride(), s.width() + s.kv_width()),
      .output = in_rows(s, s.heads, s.width(), 0),
      .log_sums = {.extents = {s.batch, s.heads, s.sequence, 1}, .strides = {s.heads * s.sequence, s.sequence, 1, 1}}};
}

bool fused_attention_may_support(const AttentionShape& s, DType type) {
  constexpr int64_t kWidestHead = 256, kHeadMultiple = 8;
  return type != DType::kFloat32 && s.sequence > 1 && s.head_width <= kWidestHead && s.head_width % kHeadMultiple == 0;
}

int64_t fused_attention_workspace_bound(const AttentionShape& s, DType type) {
  constexpr int64_t kQueryTile = 64, kKeyTile = 128, kTileCounterBytes = 8, kCounterAlignment = 128, kSlackBytes = 4096;
  const int64_t heads = s.batch * s.heads, rows = heads * s.sequence;
  const int64_t value_bytes = element_bytes(type), sum_bytes = element_bytes(DType::kFloat32);
  // The gradients of keys and values of each query head, before those of a group of heads are added. Blackwell GPUs
  // store those of wide heads in fp32 too.
  const int64_t gradient_bytes = s.head_width > kWidestHeadOfAll ? value_bytes + sum_bytes : value_bytes;
  const int64_t group_bytes = s.heads == s.kv_heads ? 0 : 2 * rows * s.head_width * gradient_bytes;
  const int64_t score_bytes = heads * aligned(s.sequence, kQueryTile) * aligned(s.sequence, kKeyTile) * value_bytes;
  const int64_t counter_bytes =
      aligned(heads * aligned(s.sequence, kQueryTile) / kQueryTile * kTileCounterBytes, kCounterAlignment);
  const int64_t query_bytes = rows * s.head_width * sum_bytes + counter_bytes;
  // For each query, the sum over the head of output times gradient of the output.
  const int64_t row_bytes = rows * sum_bytes;
  return (exceeds_limit(score_bytes) ? query_bytes : score_bytes) + group_bytes + row_bytes + kSlackBytes;
}

int64_t fused_attention_gradient_bytes(const AttentionShape& s) {
  return aligned(s.batch * s.sequence * s.width() * element_bytes(DType::kBFloat16), kFusedAttentionAlignment);
}

int64_t gpu_attention_scratch_elements(const AttentionShape& s, DType type, AttentionKernels kernels) {
  const int64_t own = gpu_attention_scratch_elements(s);
  if (kernels == AttentionKernels::kOwn || !fused_attention_may_support(s, type)) return own;
  const int64_t bytes =
      kFusedAttentionAlignment + fused_attention_gradient_bytes(s) + fused_attention_workspace_bound(s, type);
  return std::max(own, aligned(bytes, element_bytes(DType::kFloat32)) / element_bytes(DType::kFloat32));
}

}  // namespace aliquot
