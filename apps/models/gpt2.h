#pragma once
// GPT-2 on the host: learned positions, pre-norm blocks, GELU by tanh, the table of tokens tied to the head.

#include <memory>
#include <string>
#include <vector>

#include "apps/models/activation_arena.h"
#include "apps/models/attention.h"
#include "apps/models/layers.h"
#include "apps/models/loss.h"
#include "apps/models/model.h"
#include "apps/models/shape.h"
#include "kernels/thread_pool.h"

namespace aliquot {

/// What a run asks of the model besides its shape.
struct Gpt2Options {
  int64_t batch = 1;
  int64_t sequence = 0;                                 // 0: the context
  GradientWrite gradients = GradientWrite::kAssign;     // of all units but wte
  GradientWrite table_gradients = GradientWrite::kAdd;  // of wte, which is used twice
  bool keep_logits = true;                              // else one tile of the vocabulary at a time, twice
  bool recompute_blocks = false;                        // keep a block's input alone, and run it again in backward
};

/// Parameters of one block, or their gradients. Names are Hugging Face's; weights of products are [inputs, outputs].
struct Gpt2Block {
  float *ln_1_weight = nullptr, *ln_1_bias = nullptr;
  float *attn_weight = nullptr, *attn_bias = nullptr;            // attn.c_attn
  float *attn_proj_weight = nullptr, *attn_proj_bias = nullptr;  // attn.c_proj
  float *ln_2_weight = nullptr, *ln_2_bias = nullptr;
  float *fc_weight = nullptr, *fc_bias = nullptr;      // mlp.c_fc
  float *proj_weight = nullptr, *proj_bias = nullptr;  // mlp.c_proj
};

struct Gpt2Tensors {
  float* wte = nullptr;
  float* wpe = nullptr;
  std::vector<Gpt2Block> blocks;
  float *ln_f_weight = nullptr, *ln_f_bias = nullptr;
};

/// Units: wte, wpe, h.0, ..., ln_f. Uses: the same, and wte once more as the head. fp32.
class Gpt2 : public Model {
 public:
  /// Throws UsageError when the shape or the sequence does not fit. The pool must outlive the model.
  Gpt2(const ModelShape& shape, const Gpt2Options& options, ThreadPool& pool);

  const std::vector<ModelUnit>& units() const override { return units_; }
  const std::vector<int>& uses() const override { return uses_; }
  int64_t activation_bytes() const override { return activation_bytes_; }
  void set_activations(std::byte* memory) override;
  void set_batch(const TokenBatch& batch) override;
  void forward(int use) override;
  void backward(int use) override;
  double loss_sum() const override { return loss_sum_; }
  void set_loss_factor(float factor) override { loss_factor_ = factor; }

 private:
  // What one block keeps for backward; with recompute_blocks all blocks but their inputs share one.
  struct BlockActivations {
    float *input = nullptr, *mean_1 = nullptr, *rstd_1 = nullptr, *qkv = nullptr, *attention = nullptr,
          *log_sums = nullptr, *middle = nullptr, *mean_2 = nullptr, *rstd_2 = nullptr, *before_gelu = nullptr;
  };

  int64_t rows() const { return options_.batch * options_.sequence; }
  void declare_units();
  void declare_block(int64_t layer);
  void lay_out(ActivationArena& arena);
  AttentionShape attention_shape() const;
  LossShape loss_shape() const;
  Embedding embedding() const;
  Positions positions() const;
  float* block_output(int64_t layer) const;

  void forward_block(int64_t layer);
  void forward_attention(const Gpt2Block& w, const BlockActivations& a);
  void forward_mlp(const Gpt2Block& w, const BlockActivations& a);
  void backward_block(int64_t layer);
  void backward_mlp(const Gpt2Block& w, const Gpt2Block& g, const BlockActivations& a);
  void backward_attention(const Gpt2Block& w, const Gpt2Block& g, const BlockActivations& a);
  void norm_again(const float* x, float* mean, float* rstd, const float* weight, const float* bias);
  void norm_backward(const LayerNormBackwardRows& rows, float* d_weight, float* d_bias);
  void forward_final_norm();
  void backward_final_norm();
  void backward_head();

  ModelShape shape_;
  Gpt2Options options_;
  ThreadPool& pool_;
  bool add_, add_table_;  // gradients are added to what is there
  std::vector<ModelUnit> units_;
  std::vector<int> uses_;
  Gpt2Tensors parameters_, gradients_;

  int64_t activation_bytes_ = 0;
  std::vector<BlockActivations> blocks_;
  float *final_input_ = nullptr, *final_mean_ = nullptr, *final_rstd_ = nullptr, *final_output_ = nullptr;
  LossBuffers loss_;
  float* gradient_ = nullptr;  // of what flows between units, rows x width
  float* narrow_ = nullptr;    // scratch, rows x width
  float* wide_ = nullptr;      // scratch, rows x max(hidden, 3 width)
  float* attention_scratch_ = nullptr;

  TokenBatch batch_;
  double loss_sum_ = 0;
  float loss_factor_ = 1.0f;
};

}  // namespace aliquot
