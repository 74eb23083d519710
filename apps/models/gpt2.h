#pragma once
// GPT-2: learned positions, pre-norm blocks, GELU (tanh approximation), token embedding tied to the head.

#include <vector>

#include "apps/models/transformer.h"

namespace aliquot {

/// Parameters of one block, or their gradients. Names are those of Hugging Face; weight matrices are [inputs, outputs].
struct Gpt2Block {
  Values ln_1_weight, ln_1_bias;
  Values attn_weight, attn_bias;            // attn.c_attn
  Values attn_proj_weight, attn_proj_bias;  // attn.c_proj
  Values ln_2_weight, ln_2_bias;
  Values fc_weight, fc_bias;      // mlp.c_fc
  Values proj_weight, proj_bias;  // mlp.c_proj
};

struct Gpt2Tensors {
  Values wte, wpe;
  std::vector<Gpt2Block> blocks;
  Values ln_f_weight, ln_f_bias;
  Values lm_head;  // unused if the token embedding is tied to the head
};

/// The units are wte, wpe, h.0, ..., ln_f, lm_head. Each has one use, in this order. If the head is tied, there is no
/// lm_head, and the last use is wte again.
class Gpt2 final : public Transformer {
 public:
  Gpt2(const ModelShape& shape, const ModelOptions& options, Backend& backend);

  void forward(int use) override;
  void recompute(int use) override;
  void backward(int use) override;
  void backward_input(int use) override;
  void backward_weights(int use) override;

 private:
  // Activations that a block saves for backward, besides its input.
  struct BlockActivations {
    float *mean_1 = nullptr, *rstd_1 = nullptr;
    Values qkv, attention;
    float *log_sums = nullptr, *middle = nullptr, *mean_2 = nullptr, *rstd_2 = nullptr;
    Values before_gelu;
  };

  void declare_units();
  void declare_block(int64_t layer);
  UseActivations use_of(int use) const override;
  void allocate_use(int use, UseArenas& memory) override;
  void allocate_block(UseArenas& memory);
  bool is_block(int use) const { return use >= 2 && use < 2 + shape_.layers; }
  Positions positions() const;
  ConstValues head() const { return shape_.tied ? parameters_.wte : parameters_.lm_head; }

  void forward_block(const Gpt2Block& w);
  void forward_attention(const Gpt2Block& w);
  void forward_mlp(const Gpt2Block& w, bool needs_gelu);
  void backward_block(const Gpt2Block& w, const Gpt2Block& g);
  void backward_mlp(const Gpt2Block& w, const Gpt2Block& g);
  void backward_attention(const Gpt2Block& w, const Gpt2Block& g);
  BlockLinear attn_linear(const Gpt2Block& w) const;
  BlockLinear attn_proj_linear(const Gpt2Block& w) const;
  BlockLinear fc_linear(const Gpt2Block& w) const;
  BlockLinear proj_linear(const Gpt2Block& w) const;
  Norm norm_1(const Gpt2Block& w) const;
  Norm norm_2(const Gpt2Block& w) const;
  Norm final_norm() const;
  void backward_positions();
  void backward_qkv(const BlockLinear& attn, float* to);
  void backward_final_norm();

  Gpt2Tensors parameters_, gradients_;
  BlockActivations block_;  // saved activations of the current use
  float *final_mean_ = nullptr, *final_rstd_ = nullptr;
};

}  // namespace aliquot
