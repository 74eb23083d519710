// Forward, recompute and backward of each use of Llama.
#include "apps/models/llama.h"

namespace aliquot {

void Llama::forward(int use) {
  if (use == 0) return backend_.embedding_forward(embedding(), parameters_.embed_tokens, output());
  if (is_block(use)) return forward_block(parameters_.blocks[static_cast<size_t>(use - 1)]);
  if (use == 1 + shape_.layers) return norm_forward(final_norm(), normed_output());
  forward_head(head());
}

/// Repeats the forward of the block without the SwiGLU and the last matrix product, because their results are not
/// saved.
void Llama::recompute(int use) {
  const LlamaBlock& w = parameters_.blocks[static_cast<size_t>(use - 1)];
  forward_attention(w);
  forward_mlp(w);
}

void Llama::backward(int use) {
  if (use == 0) {
    // The backward of a tied head has already written the gradient of the shared table, so this backward adds to it.
    return backend_.embedding_backward(embedding(), gradient_, gradients_.embed_tokens, shape_.tied || adds());
  }
  const auto layer = static_cast<size_t>(use - 1);
  if (is_block(use)) return backward_block(parameters_.blocks[layer], gradients_.blocks[layer]);
  if (use == 1 + shape_.layers) return norm_backward(final_norm(), gradient_, gradients_.norm, nullptr, false);
  const bool table_adds = options_.table_gradients == GradientMode::kAdd;
  if (shape_.tied) return backward_head(head(), gradients_.embed_tokens, table_adds);
  backward_head(head(), gradients_.lm_head, adds());
}

void Llama::forward_block(const LlamaBlock& w) {
  forward_attention(w);
  forward_mlp(w);
  backend_.gated_forward(wide_scratch_, gated());
  backend_.linear_forward(weight(w.down_proj, shape_.hidden, shape_.width), wide_scratch_, block_.middle, output());
}

void Llama::forward_attention(const LlamaBlock& w) {
  const BlockActivations& a = block_;
  const AttentionShape s = attention_shape();
  norm_forward(norm_1(w), normed_);
  backend_.linear_forward(qkv_weight(w.q_proj, s.width()), normed_, nullptr, a.qkv);
  backend_.linear_forward(qkv_weight(w.k_proj, s.kv_width()), normed_, nullptr, a.qkv.from(s.width()));
  backend_.linear_forward(qkv_weight(w.v_proj, s.kv_width()), normed_, nullptr, a.qkv.from(s.width() + s.kv_width()));
  apply_rotary(a.qkv, false);
  backend_.attention_forward({s, a.qkv, a.attention, a.log_sums, attention_scratch_});
  backend_.linear_forward(weight(w.o_proj, s.width(), s.width()), a.attention, input(), a.middle);
}

void Llama::forward_mlp(const LlamaBlock& w) {
  const BlockActivations& a = block_;
  norm_forward(norm_2(w), normed_);
  backend_.linear_forward(weight(w.gate_proj, shape_.width, shape_.hidden), normed_, nullptr, a.gate);
  backend_.linear_forward(weight(w.up_proj, shape_.width, shape_.hidden), normed_, nullptr, a.up);
}

void Llama::backward_block(const LlamaBlock& w, const LlamaBlock& g) {
  backend_.gated_forward(wide_scratch_, gated());
  backward_mlp(w, g);
  backward_attention(w, g);
}

void Llama::backward_mlp(const LlamaBlock& w, const LlamaBlock& g) {
  const BlockActivations& a = block_;
  const Linear down = weight(w.down_proj, shape_.hidden, shape_.width);
  const Linear gate = weight(w.gate_proj, shape_.width, shape_.hidden);
  const Linear up = weight(w.up_proj, shape_.width, shape_.hidden);
  const ConstValues from = gradient_for_products();
  backend_.linear_backward_weights(down, wide_scratch_, from, {g.down_proj, nullptr, adds()});
  backend_.linear_backward_input(down, from, wide_scratch_);
  backend_.gated_backward(wide_scratch_, gated());
  norm_forward(norm_2(w), normed_);
  backend_.linear_backward_weights(gate, normed_, a.gate, {g.gate_proj, nullptr, adds()});
  backend_.linear_backward_weights(up, normed_, a.up, {g.up_proj, nullptr, adds()});
  backend_.linear_backward_input(gate, a.gate, normed_gradient_);
  backend_.linear_backward_input(up, a.up, normed_gradient_, true);
  norm_backward(norm_2(w), normed_gradient_, g.middle_norm, nullptr);
}

void Llama::backward_attention(const LlamaBlock& w, const LlamaBlock& g) {
  const BlockActivations& a = block_;
  const Linear out = weight(w.o_proj, shape_.width, shape_.width);
  const ConstValues from = gradient_for_products();
  backend_.linear_backward_weights(out, a.attention, from, {g.o_proj, nullptr, adds()});
  backend_.linear_backward_input(out, from, normed_gradient_);
  backend_.attention_backward(
      {attention_shape(), a.qkv, a.attention, a.log_sums, normed_gradient_, wide_scratch_, attention_scratch_});
  apply_rotary(wide_scratch_, true);
  norm_forward(norm_1(w), normed_);
  backward_qkv(w, g);
  norm_backward(norm_1(w), normed_gradient_, g.input_norm, nullptr);
}

// Reads the gradient of qkv from wide_scratch_ and the norm's output from normed_. Assigns the gradient of the norm's
// output to normed_gradient_. In fp32, normed_ and normed_gradient_ are the same memory, so the weight gradients must
// be computed first.
void Llama::backward_qkv(const LlamaBlock& w, const LlamaBlock& g) {
  const AttentionShape s = attention_shape();
  const Linear q = qkv_weight(w.q_proj, s.width()), k = qkv_weight(w.k_proj, s.kv_width()),
               v = qkv_weight(w.v_proj, s.kv_width());
  const Values d_keys = wide_scratch_.from(s.width()), d_values = d_keys.from(s.kv_width());
  backend_.linear_backward_weights(q, normed_, wide_scratch_, {g.q_proj, nullptr, adds()});
  backend_.linear_backward_weights(k, normed_, d_keys, {g.k_proj, nullptr, adds()});
  backend_.linear_backward_weights(v, normed_, d_values, {g.v_proj, nullptr, adds()});
  backend_.linear_backward_input(q, wide_scratch_, normed_gradient_);
  backend_.linear_backward_input(k, d_keys, normed_gradient_, true);
  backend_.linear_backward_input(v, d_values, normed_gradient_, true);
}

}  // namespace aliquot
