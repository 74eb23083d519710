#pragma once
// Llama: RMS norms, rotary positions, SwiGLU, grouped-query attention, no biases.

#include <vector>

#include "apps/models/transformer.h"

namespace aliquot {

/// Parameters of one block, or their gradients. Names are those of Hugging Face; weight matrices are [outputs, inputs].
struct LlamaBlock {
  Values input_norm;                      // input_layernorm
  Values q_proj, k_proj, v_proj, o_proj;  // self_attn
  Values middle_norm;                     // post_attention_layernorm
  Values gate_proj, up_proj, down_proj;   // mlp
};

struct LlamaTensors {
  Values embed_tokens;
  std::vector<LlamaBlock> blocks;
  Values norm;
  Values lm_head;  // unused if the token embedding is tied to the head
};

/// The units are model.embed_tokens, model.layers.0, ..., model.norm and lm_head. Each has one use, in this order. If
/// the head is tied, there is no lm_head, and the last use is model.embed_tokens again.
class Llama final : public Transformer {
 public:
  Llama(const ModelShape& shape, const ModelOptions& options, Backend& backend);

  void forward(int use) override;
  void recompute(int use) override;
  void backward(int use) override;
  void backward_input(int use) override;
  void backward_weights(int use) override;

 private:
  // Activations that a block saves for backward, besides its input. Backward overwrites gate and up with their
  // gradients.
  struct BlockActivations {
    float* rstd_1 = nullptr;
    Values qkv, attention;  // qkv has rotated queries and keys
    float *log_sums = nullptr, *middle = nullptr, *rstd_2 = nullptr;
    Values gate, up;
  };

  void declare_units();
  void declare_block(int64_t layer);
  UseActivations use_of(int use) const override;
  void allocate_use(int use, UseArenas& memory) override;
  void allocate_block(UseArenas& memory);
  bool is_block(int use) const { return use >= 1 && use <= shape_.layers; }
  Linear weight(ConstValues matrix, int64_t inputs, int64_t outputs) const;
  /// The projection to queries, keys or values. Its output is a range of columns of the qkv matrix.
  Linear qkv_weight(ConstValues matrix, int64_t outputs) const;
  void apply_rotary(Values qkv, bool back);
  Norm norm_1(const LlamaBlock& w) const;
  Norm norm_2(const LlamaBlock& w) const;
  Norm final_norm() const;
  GatedElements gated() const;

  void forward_block(const LlamaBlock& w);
  void forward_attention(const LlamaBlock& w);
  void forward_mlp(const LlamaBlock& w);
  void backward_block(const LlamaBlock& w, const LlamaBlock& g);
  void backward_mlp(const LlamaBlock& w, const LlamaBlock& g);
  void backward_attention(const LlamaBlock& w, const LlamaBlock& g);
  void backward_qkv(const LlamaBlock& w, const LlamaBlock& g);
  ConstValues head() const { return shape_.tied ? parameters_.embed_tokens : parameters_.lm_head; }

  LlamaTensors parameters_, gradients_;
  BlockActivations block_;  // saved activations of the current use
  float* final_rstd_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr;  // scratch: `sequence` rows of head_width / 2 elements
};

}  // namespace aliquot
