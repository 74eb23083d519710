#pragma once
// Llama and the models with the same blocks (Mistral, Qwen2, Qwen3): RMS norms, rotary positions, SwiGLU, grouped-query
// attention. ModelShape has the variations: widths of heads, biases, norms of queries and keys, sliding windows.

#include <vector>

#include "apps/models/transformer.h"

namespace aliquot {

/// Parameters of one block, or their gradients. Names are those of Hugging Face; weight matrices are [outputs, inputs].
/// The members that the shape does not have are null.
struct LlamaBlock {
  Values input_norm;                      // input_layernorm
  Values q_proj, k_proj, v_proj, o_proj;  // self_attn
  Values q_bias, k_bias, v_bias, o_bias;
  Values q_norm, k_norm;
  Values middle_norm;                    // post_attention_layernorm
  Values gate_proj, up_proj, down_proj;  // mlp
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
    Values qkv, attention;  // qkv has rotated queries and keys, but with QK norms those before the norms
    float *log_sums = nullptr, *middle = nullptr, *rstd_2 = nullptr;
    Values gate, up;
  };

  void declare_units();
  void declare_block(int64_t layer);
  UseActivations use_of(int use) const override;
  void allocate_use(int use, UseArenas& memory) override;
  void allocate_block(UseArenas& memory);
  void allocate_qk_norms(UseArenas& memory);
  bool is_block(int use) const { return use >= 1 && use <= shape_.layers; }
  BlockLinear weight(Projection p, ConstValues matrix, int64_t inputs, int64_t outputs) const;
  /// The projection to queries, keys or values. Its output is a range of columns of the qkv matrix.
  BlockLinear input_projection(Projection p, ConstValues matrix, ConstValues bias, int64_t outputs) const;
  BlockLinear queries_weight(const LlamaBlock& w) const;
  BlockLinear output_projection(const LlamaBlock& w) const;
  BlockLinear gate_weight(const LlamaBlock& w) const;
  BlockLinear up_weight(const LlamaBlock& w) const;
  BlockLinear down_weight(const LlamaBlock& w) const;
  Values own_kv_rows(Values parameter, int64_t row_elements) const;
  BlockLinear key_projection(const LlamaBlock& w) const;
  BlockLinear value_projection(const LlamaBlock& w) const;
  void clear_shared_kv(const LlamaBlock& g);
  void apply_rotary(Values qkv, bool back);
  /// Returns the rotated queries and keys, and the values: in block_.qkv, or with QK norms in normed_qkv_.
  ConstValues queries_and_keys(const LlamaBlock& w);
  HeadNorms q_norm(const LlamaBlock& w) const;
  HeadNorms k_norm(const LlamaBlock& w) const;
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
  void backward_final_norm();
  void backward_head_norms(const HeadNorms& norm, DividedDimension heads, Values gradient, float* d_weight);
  void backward_qk_norms(const LlamaBlock& w, const LlamaBlock& g);
  void backward_qkv(const LlamaBlock& w, const LlamaBlock& g, ConstValues normed);
  ConstValues head() const { return shape_.tied ? parameters_.embed_tokens : parameters_.lm_head; }

  LlamaTensors parameters_, gradients_;
  BlockActivations block_;  // saved activations of the current use
  float* final_rstd_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr;  // scratch: `sequence` rows of head_width / 2 elements
  // Only with QK norms. The first three are scratch.
  Values normed_qkv_;
  float *q_rstd_ = nullptr, *k_rstd_ = nullptr;
  float* qk_norm_gradients_ = nullptr;  // of the two weights; both parts of a backward access it, as with BlockData
};

}  // namespace aliquot
