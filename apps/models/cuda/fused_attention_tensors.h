#pragma once
// The operands and the scratch memory of attention that a library computes on a GPU in one fused kernel. Needs no GPU
// and no library, so that plans can be made on any machine.

#include <array>
#include <compare>
#include <cstdint>

#include "apps/models/layers/attention.h"
#include "kernels/formats/dtype.h"

namespace aliquot {

/// Which kernels compute attention on GPUs: those of this project, or those of cuDNN where it supports the shape.
enum class AttentionKernels : uint8_t { kOwn, kCudnn };

/// The place of a tensor in an array. Its dimensions are batch, head, position and element of a head. Strides and the
/// offset of the first element are in elements.
struct AttentionTensor {
  std::array<int64_t, 4> extents = {}, strides = {};
  int64_t offset = 0;

  auto operator<=>(const AttentionTensor&) const = default;
};

enum class AttentionPass : uint8_t { kForward, kBackward };

/// Everything that determines the plan of a pass. Queries, keys and values, and in the gradient theirs, are in the rows
/// of qkv. The gradient of the output has the type and the place of the output. Log sums are fp32, natural logarithms.
struct FusedAttentionProblem {
  AttentionPass pass = AttentionPass::kForward;
  DType type = DType::kBFloat16;
  int64_t window = 0;  // a query attends to this many positions at most, the last of which is its own; 0: no limit
  float scale = 1;     // of the scores
  AttentionTensor queries, keys, values, output, log_sums;

  auto operator<=>(const FusedAttentionProblem&) const = default;
};

FusedAttentionProblem fused_attention_problem(AttentionPass pass, const AttentionShape& shape, DType type);

/// Whether cuDNN supports the shape on some GPU. Heads of more than 128 elements need a Hopper GPU. A Blackwell GPU
/// supports 256 elements too. Heads of other widths, sequences of one token and fp32 always use the project's own
/// kernels.
bool fused_attention_may_support(const AttentionShape& shape, DType type);

/// An upper bound of the workspace that cuDNN needs for forward or backward, in bytes. Backward is deterministic, so it
/// stores the gradients of all scores in 16 bits. If they have more bytes than the environment variable
/// CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT allows, it adds the gradient of the queries in fp32 in a fixed order instead.
/// The bound has not been checked on a GPU.
int64_t fused_attention_workspace_bound(const AttentionShape& shape, DType type);

/// Arrays in the scratch memory begin at multiples of this number of bytes.
inline constexpr int64_t kFusedAttentionAlignment = 256;

/// The bytes of the gradient of the output in 16 bits, which is in the scratch memory before the workspace.
int64_t fused_attention_gradient_bytes(const AttentionShape& shape);

/// The scratch memory of attention in fp32 elements, for an address with any alignment. It is enough for the project's
/// own kernels too, in case the GPU does not support the shape.
int64_t gpu_attention_scratch_elements(const AttentionShape& shape, DType type, AttentionKernels kernels);

}  // namespace aliquot
