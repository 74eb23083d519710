#include <algorithm>
#include <map>
#include <vector>

#include "apps/models/backend.h"
#include "apps/models/cuda/gpu_scratch.h"
#include "apps/models/layers/rotary_angles.h"
#include "kernels/gemm/product.h"

namespace aliquot {
namespace {

class HostBackend : public Backend {
 public:
  HostBackend(ThreadPool& pool, int threads) : pool_(pool), threads_(threads > 0 ? threads : pool.thread_count()) {}

  void compute_on(Stream&) override {}

  void layer_norm_forward(const LayerNormRows& a) override { aliquot::layer_norm_forward(pool_, a); }
  void layer_norm_backward(const LayerNormBackwardRows& a) override { aliquot::layer_norm_backward(pool_, a); }
  void layer_norm_backward_weights(const LayerNormWeightColumns& a) override {
    aliquot::layer_norm_backward_weights(pool_, a);
  }
  void linear_forward(const Linear& linear, ConstValues x, const float* residual, Values to) override {
    aliquot::linear_forward(pool_, linear, x, residual, to);
  }
  void linear_gelu_forward(const Linear& linear, ConstValues x, Values before_gelu, Values to,
                           bool needs_gelu) override {
    linear_forward(linear, x, nullptr, before_gelu);
    if (needs_gelu) gelu_forward(to, before_gelu, linear.rows * linear.outputs);
  }
  void linear_gelu_backward_input(const Linear& linear, ConstValues from, ConstValues before_gelu, Values to) override {
    linear_backward_input(linear, from, to, false);
    gelu_backward(to, before_gelu, linear.rows * linear.inputs);
  }
  void linear_forward_add(const Linear& linear, ConstValues x, Values to) override {
    aliquot::linear_forward_add(pool_, linear, x, to);
  }
  void linear_backward_input(const Linear& linear, ConstValues from, Values to, bool add) override {
    aliquot::linear_backward_input(pool_, linear, from, to, add);
  }
  void linear_backward_weights(const Linear& linear, ConstValues x, ConstValues from,
                               const LinearGradients& to) override {
    aliquot::linear_backward_weights(pool_, linear, x, from, to);
  }
  void sum_columns(const ColumnSums& a) override { aliquot::sum_columns(pool_, a); }
  void head_norms_forward(const HeadNorms& a) override { aliquot::head_norms_forward(pool_, a); }
  void head_norms_backward(const HeadNormsBackward& a) override { aliquot::head_norms_backward(pool_, a); }
  void head_norms_backward_weight(const HeadNormsWeight& a) override { aliquot::head_norms_backward_weight(pool_, a); }
  void gelu_forward(Values to, ConstValues x, int64_t count) override { aliquot::gelu_forward(pool_, to, x, count); }
  void gelu_backward(Values gradient, ConstValues x, int64_t count) override {
    aliquot::gelu_backward(pool_, gradient, x, count);
  }
  void gated_forward(Values to, const GatedElements& elements) override { aliquot::gated_forward(pool_, to, elements); }
  void gated_backward(ConstValues from, const GatedElements& elements) override {
    aliquot::gated_backward(pool_, from, elements);
  }
  void rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines, int64_t first) override {
    compute_rotary_angles(shape, sequence, cosines, sines, first);
  }
  void rotate(const Rotary& rotary, Values x) override { aliquot::rotate(pool_, rotary, x); }
  void convert(Values to, ConstValues from, int64_t count) override { aliquot::convert(pool_, to, from, count); }
  void clear(Values to, int64_t count) override { aliquot::clear(pool_, to, count); }
  void add(float* to, const float* from, int64_t count) override { aliquot::add(pool_, to, from, count); }
  void embedding_forward(const EmbeddingRows& embedding, ConstValues table, float* to) override {
    aliquot::embedding_forward(pool_, embedding, table, to);
  }
  void embedding_backward(const EmbeddingRows& embedding, const float* from, Values table_gradient, bool add) override {
    aliquot::embedding_backward(pool_, embedding, from, table_gradient, add);
  }
  void positions_forward(const Positions& positions, ConstValues table, const float* from, float* to) override {
    aliquot::positions_forward(pool_, positions, table, from, to);
  }
  void positions_backward(const Positions& positions, const float* from, Values table_gradient, bool add) override {
    aliquot::positions_backward(pool_, positions, from, table_gradient, add);
  }
  void attention_forward(const AttentionForward& a) override { aliquot::attention_forward(pool_, a); }
  void attention_backward(const AttentionBackward& a) override { aliquot::attention_backward(pool_, a); }
  void loss_forward(const LossForward& a) override { loss() = aliquot::loss_forward(pool_, a); }
  void loss_statistics(const LossForward& a, float* part) override { aliquot::loss_statistics(pool_, a, part); }
  void loss_of_parts(const LossForward& a, const SplitParts& parts) override {
    loss() = aliquot::loss_of_parts(a, parts);
  }
  void loss_backward(const LossBackward& a) override { aliquot::loss_backward(pool_, a); }

  void read(const float* from, std::span<float> to) override { std::copy_n(from, to.size(), to.begin()); }
  double loss_sum() override { return loss_sum_; }
  StagedTokens stage_tokens(const TokenBatch& batch) override {
    slot_ = nullptr;
    return {batch.tokens.data(), batch.targets.data()};
  }
  void stage_batch(int slot, const TokenBatch& batch) override {
    slots_[slot] = {{batch.tokens.begin(), batch.tokens.end()}, {batch.targets.begin(), batch.targets.end()}};
  }
  StagedTokens select_batch(int slot) override {
    slot_ = &slots_.at(slot);
    return {slot_->tokens.data(), slot_->targets.data()};
  }
  double loss_sum(int slot) override { return slots_.at(slot).loss_sum; }
  const float* stage_loss_factor(float) override { return nullptr; }

  int64_t attention_scratch_elements(const AttentionShape& shape, DType type) const override {
    return threads_ * aliquot::attention_scratch_elements(shape, type);
  }
  int64_t product_scratch_elements(DType operands, DType result) const override {
    return threads_ * aliquot::product_scratch_elements(operands, result, selected_bf16_product_method());
  }
  LogitTiles logit_tiles(DType compute) const override { return {.in_fp32 = compute != DType::kFloat32}; }
  int64_t row_sum_scratch_elements(int64_t, int64_t) const override { return 0; }

 private:
  struct Slot {
    std::vector<int32_t> tokens, targets;
    double loss_sum = 0;
  };
  double& loss() { return slot_ != nullptr ? slot_->loss_sum : loss_sum_; }

  ThreadPool& pool_;
  int64_t threads_;
  double loss_sum_ = 0;
  std::map<int, Slot> slots_;
  Slot* slot_ = nullptr;  // the selected one
};

class PlannedGpuBackend final : public HostBackend {
 public:
  PlannedGpuBackend(ThreadPool& pool, OperandRounding rounding, AttentionKernels attention)
      : HostBackend(pool, 1), rounding_(rounding), attention_(attention) {}

  int64_t attention_scratch_elements(const AttentionShape& shape, DType type) const override {
    return gpu_attention_scratch_elements(shape, type, attention_);
  }
  int64_t product_scratch_elements(DType, DType) const override {
    return kGpuProductScratchBytes / element_bytes(DType::kFloat32);
  }
  LogitTiles logit_tiles(DType compute) const override { return gpu_logit_tiles(compute); }
  int64_t row_sum_scratch_elements(int64_t rows, int64_t width) const override {
    return gpu_row_sum_scratch_elements(rows, width);
  }
  bool has_fp8_products() const override { return rounding_ == OperandRounding::kFp8; }

 private:
  OperandRounding rounding_;
  AttentionKernels attention_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(ThreadPool& pool, int threads) {
  return std::make_unique<HostBackend>(pool, threads);
}

std::unique_ptr<Backend> make_planned_gpu_backend(ThreadPool& pool, OperandRounding rounding,
                                                  AttentionKernels attention) {
  return std::make_unique<PlannedGpuBackend>(pool, rounding, attention);
}

}  // namespace aliquot
