#include "apps/models/cuda/fused_attention_cuda.h"

#include <fmt/format.h>
#include <stdexcept>

#include "kernels/device/device_cuda.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The scratch memory of a call: the gradient of the output in 16 bits, and then the workspace.
struct Scratch {
  std::byte *gradient = nullptr, *workspace = nullptr;

  Scratch(float* scratch, const AttentionShape& shape) {
    const auto address = reinterpret_cast<uintptr_t>(scratch);
    const uintptr_t past = address % kFusedAttentionAlignment;
    gradient = reinterpret_cast<std::byte*>(scratch) + (past == 0 ? 0 : kFusedAttentionAlignment - past);
    workspace = gradient + fused_attention_gradient_bytes(shape);
  }
};

void require_planned(const FusedAttentionPlan* plan) {
  if (plan == nullptr) throw std::logic_error("fused attention does not support the shape of a call");
}

}  // namespace

bool FusedAttention::supports(const AttentionShape& shape, DType type) {
  return fused_attention_may_support(shape, type) && plan_of(AttentionPass::kForward, shape, type) != nullptr &&
         plan_of(AttentionPass::kBackward, shape, type) != nullptr;
}

FusedAttentionPlan* FusedAttention::plan_of(AttentionPass pass, const AttentionShape& shape, DType type) {
  const FusedAttentionProblem problem = fused_attention_problem(pass, shape, type);
  const auto known = plans_.find(problem);
  if (known != plans_.end()) return known->second.get();
  std::string reason;
  std::unique_ptr<FusedAttentionPlan> plan = library_->plan(problem, reason);
  if (plan == nullptr && reason_.empty()) reason_ = reason;
  const int64_t bound_bytes = fused_attention_workspace_bound(shape, type);
  if (plan != nullptr && plan->workspace_bytes() > bound_bytes) {
    throw UnavailableError(fmt::format(
        "{} needs a workspace of {} bytes for attention with {} x {} tokens, {} heads and {} elements in a head, and "
        "the memory plan has {} bytes for it: use --attention own.",
        library_->describe(), plan->workspace_bytes(), shape.batch, shape.sequence, shape.heads, shape.head_width,
        bound_bytes));
  }
  return plans_.emplace(problem, std::move(plan)).first->second.get();
}

void FusedAttention::forward(Stream& stream, const AttentionForward& a) {
  FusedAttentionPlan* plan = plan_of(AttentionPass::kForward, a.shape, a.qkv.type);
  require_planned(plan);
  const FusedAttentionProblem at = fused_attention_problem(AttentionPass::kForward, a.shape, a.qkv.type);
  plan->run(stream, {.queries = a.qkv.from(at.queries.offset).data,
                     .keys = a.qkv.from(at.keys.offset).data,
                     .values = a.qkv.from(at.values.offset).data,
                     .output = a.to.from(at.output.offset).data,
                     .log_sums = a.log_sums + at.log_sums.offset,
                     .workspace = Scratch(a.scratch, a.shape).workspace});
}

void FusedAttention::backward(Stream& stream, const AttentionBackward& a) {
  FusedAttentionPlan* plan = plan_of(AttentionPass::kBackward, a.shape, a.qkv.type);
  require_planned(plan);
  const FusedAttentionProblem at = fused_attention_problem(AttentionPass::kBackward, a.shape, a.qkv.type);
  const Scratch scratch(a.scratch, a.shape);
  cuda_kernels().cast(stream, scratch.gradient, a.qkv.type, a.from, DType::kFloat32,
                      a.shape.batch * a.shape.sequence * a.shape.width());
  plan->run(stream, {.queries = a.qkv.from(at.queries.offset).data,
                     .keys = a.qkv.from(at.keys.offset).data,
                     .values = a.qkv.from(at.values.offset).data,
                     .output = const_cast<void*>(a.output.from(at.output.offset).data),
                     .log_sums = const_cast<float*>(a.log_sums) + at.log_sums.offset,
                     .output_gradient = ConstValues(scratch.gradient, a.qkv.type).from(at.output.offset).data,
                     .query_gradient = a.to.from(at.queries.offset).data,
                     .key_gradient = a.to.from(at.keys.offset).data,
                     .value_gradient = a.to.from(at.values.offset).data,
                     .workspace = scratch.workspace});
}

std::string FusedAttention::describe() const {
  if (reason_.empty()) return library_->describe();
  return fmt::format("own kernels, because {} does not support the shape: {}", library_->describe(), reason_);
}

}  // namespace aliquot
