// Forward, recompute and backward of each use of Llama.
#include <array>

#include "apps/models/llama.h"

namespace aliquot {

void Llama::forward(int use) {
  if (use == 0) return embedding_forward(parameters_.embed_tokens);
  if (is_block(use)) return forward_block(parameters_.blocks[static_cast<size_t>(use - 1)]);
  if (use == 1 + shape_.layers) return final_norm_forward(final_norm());
  forward_head(head());
}

/// Repeats the forward of the block without the SwiGLU and the last matrix product, because their results are not
/// saved. Only an adapter of the last product saves values that it computes from the SwiGLU.
void Llama::recompute(int use) {
  const LlamaBlock& w = parameters_.blocks[static_cast<size_t>(use - 1)];
  forward_attention(w);
  forward_mlp(w);
  if (!shape_.lora.adapts(Projection::kDown)) return;
  backend_.gated_forward(wide_scratch_, gated());
  inner_forward(down_weight(w), wide_scratch_);
}

void Llama::backward(int use) {
  part_ = BackwardPart::kWhole;
  if (use == 0) {
    // The backward of a tied head has already written the gradient of the shared table, so this backward adds to it.
    return embedding_backward(gradients_.embed_tokens, shape_.tied || adds());
  }
  const auto layer = static_cast<size_t>(use - 1);
  if (is_block(use)) return backward_block(parameters_.blocks[layer], gradients_.blocks[layer]);
  if (use == 1 + shape_.layers) return backward_final_norm();
  const bool table_adds = options_.table_gradients == GradientMode::kAdd;
  if (shape_.tied) return backward_head(head(), gradients_.embed_tokens, table_adds);
  backward_head(head(), gradients_.lm_head, adds());
}

void Llama::backward_input(int use) {
  part_ = BackwardPart::kInput;
  const LlamaBlock& w = parameters_.blocks[static_cast<size_t>(use - 1)];
  save_norms(norm_1(w), norm_2(w));
  backward_block(w, {});
}

void Llama::backward_weights(int use) {
  part_ = BackwardPart::kWeights;
  LlamaBlock w;  // only the values that this part reads
  w.input_norm = block_data_.norm_1_weight;
  w.middle_norm = block_data_.norm_2_weight;
  backward_block(w, gradients_.blocks[static_cast<size_t>(use - 1)]);
}

void Llama::forward_block(const LlamaBlock& w) {
  forward_attention(w);
  forward_mlp(w);
  backend_.gated_forward(wide_scratch_, gated());
  add_to_stream(down_weight(w), {wide_scratch_, DividedDimension::kHidden}, block_.middle, output(), "mlp output");
}

void Llama::forward_attention(const LlamaBlock& w) {
  const BlockActivations& a = block_;
  const AttentionShape s = attention_shape();
  norm_forward_of_all(norm_1(w), "attention input");
  const Values keys = a.qkv.from(s.width()), values = keys.from(s.kv_width());
  linear_forward(queries_weight(w), normed_, a.qkv);
  linear_forward(key_projection(w), normed_, keys);
  linear_forward(value_projection(w), normed_, values);
  if (!shape_.qk_norm) apply_rotary(a.qkv, false);
  attend(queries_and_keys(w), a.attention, a.log_sums);
  add_to_stream(output_projection(w), {a.attention, DividedDimension::kHeads}, input(), a.middle, "attention output");
}

ConstValues Llama::queries_and_keys(const LlamaBlock& w) {
  if (!shape_.qk_norm) return block_.qkv;
  backend_.head_norms_forward(q_norm(w));
  backend_.head_norms_forward(k_norm(w));
  apply_rotary(normed_qkv_, false);
  return normed_qkv_;
}

void Llama::forward_mlp(const LlamaBlock& w) {
  const BlockActivations& a = block_;
  norm_forward_of_all(norm_2(w), "mlp input");
  linear_forward(gate_weight(w), normed_, a.gate);
  linear_forward(up_weight(w), normed_, a.up);
}

void Llama::backward_block(const LlamaBlock& w, const LlamaBlock& g) {
  backward_mlp(w, g);
  backward_attention(w, g);
  if (!fixed_leaves()) return;
  const int64_t head_width = shape_.head_width();
  std::array gradients{norm_gradient(0, g.input_norm, nullptr), norm_gradient(1, g.middle_norm, nullptr),
                       NormGradient{norm_sums(), g.q_norm, nullptr, head_width},
                       NormGradient{norm_sums() + head_width, g.k_norm, nullptr, head_width}};
  finish_norm_gradients(std::span(gradients).first(shape_.qk_norm ? 4 : 2));
}

void Llama::backward_final_norm() {
  norm_backward(final_norm(), gradient_, gradients_.norm, nullptr, false);
  finish_norm_gradients(std::array{norm_gradient(0, gradients_.norm, nullptr)});
}

// BlockData::wide is the output of the SwiGLU. The weights part cannot recompute it, because the input part overwrites
// gate and up. A whole backward overwrites it with its gradient.
void Llama::backward_mlp(const LlamaBlock& w, const LlamaBlock& g) {
  const BlockActivations& a = block_;
  const BlockLinear down = down_weight(w), gate = gate_weight(w), up = up_weight(w);
  const BlockData& d = block_data_;
  if (in_input_part()) backend_.gated_forward(d.wide, gated());
  const ConstValues from = gradient_for_products(d.mlp_gradient, "mlp output gradient");
  linear_backward_weights(down, d.wide, from, g.down_proj, nullptr);
  linear_backward_input(down, from, wide_scratch_);
  if (in_input_part()) backend_.gated_backward(wide_scratch_, gated());
  const ConstValues normed = normed_for_products(norm_2(w), d.normed_2, "mlp input again");
  linear_backward_weights(gate, normed, a.gate, g.gate_proj, nullptr);
  linear_backward_weights(up, normed, a.up, g.up_proj, nullptr);
  input_gradient(std::array{OutputGradient{gate, a.gate, DividedDimension::kHidden},
                            OutputGradient{up, a.up, DividedDimension::kHidden}},
                 partial_norm_gradient(d.norm_2_gradient));
  sum_norm_gradient(d.norm_2_gradient, "mlp input gradient");
  norm_backward(norm_2(w), d.norm_2_gradient, g.middle_norm, nullptr);
}

void Llama::backward_attention(const LlamaBlock& w, const LlamaBlock& g) {
  const BlockActivations& a = block_;
  const BlockLinear out = output_projection(w);
  const BlockData& d = block_data_;
  const ConstValues from = gradient_for_products(d.attention_gradient, "attention output gradient");
  linear_backward_weights(out, a.attention, from, g.o_proj, g.o_bias);
  linear_backward_input(out, from, normed_gradient_);
  if (in_input_part()) {
    backend_.attention_backward({attention_shape(), queries_and_keys(w), a.attention, a.log_sums, normed_gradient_,
                                 d.qkv_gradient, attention_scratch_});
    apply_rotary(d.qkv_gradient, true);
  }
  if (shape_.qk_norm) backward_qk_norms(w, g);
  backward_qkv(w, g, normed_for_products(norm_1(w), d.normed_1, "attention input again"));
  sum_norm_gradient(d.norm_1_gradient, "attention input gradient");
  norm_backward(norm_1(w), d.norm_1_gradient, g.input_norm, nullptr);
}

// Overwrites `gradient`, the gradient of the norms' output, with that of their input.
void Llama::backward_head_norms(const HeadNorms& norm, DividedDimension heads, Values gradient, float* d_weight) {
  const HeadNormsWeight weight{.x = norm.x,
                               .gradient = gradient,
                               .rstd = norm.rstd,
                               .to = d_weight,
                               .rows = norm.rows,
                               .heads = norm.heads,
                               .head_width = norm.head_width,
                               .stride = norm.stride,
                               .begin = 0,
                               .end = norm.head_width,
                               .scratch = layer_scratch()};
  if (fixed_leaves()) {
    sum_head_norm_weights(weight, heads, d_weight);
  } else if (trains_base()) {
    backend_.head_norms_backward_weight(weight);
  }
  backend_.head_norms_backward({.x = norm.x,
                                .weight = norm.weight,
                                .gradient = gradient,
                                .rstd = norm.rstd,
                                .rows = norm.rows,
                                .heads = norm.heads,
                                .head_width = norm.head_width,
                                .stride = norm.stride});
}

// The input part overwrites the gradients that the weights need, so it computes the gradients of the weights too. The
// weights part assigns or adds them.
void Llama::backward_qk_norms(const LlamaBlock& w, const LlamaBlock& g) {
  const int64_t width = shape_.head_width();
  float *of_q = qk_norm_gradients_, *of_k = of_q + width;
  if (in_input_part()) {
    backward_head_norms(q_norm(w), DividedDimension::kHeads, block_data_.qkv_gradient, of_q);
    backward_head_norms(k_norm(w), DividedDimension::kKvHeads, block_data_.qkv_gradient.from(attention_shape().width()),
                        of_k);
  }
  if (!in_weights_part() || !trains_base()) return;
  if (fixed_leaves()) return backend_.convert(norm_sums(), of_q, 2 * width);
  backend_.sum_columns({g.q_norm, of_q, 1, width, 0, width, adds()});
  backend_.sum_columns({g.k_norm, of_k, 1, width, 0, width, adds()});
}

/// Without a tensor group in which ranks share heads, does nothing. A rank assigns the gradients of only its heads.
void Llama::clear_shared_kv(const LlamaBlock& g) {
  if (adds() || !in_weights_part() || !shares_kv_heads(shape_, options_.tensor)) return;
  const auto clear = [&](Values gradient, int64_t count) {
    if (gradient.data != nullptr) backend_.clear(gradient, count);
  };
  for (const Values weight : {g.k_proj, g.v_proj}) clear(weight, shape_.key_width() * shape_.width);
  for (const Values bias : {g.k_bias, g.v_bias}) clear(bias, shape_.key_width());
  const BlockAdapters& adapters = adapter_gradients_[static_cast<size_t>(layer_)];
  for (const Projection p : {Projection::kKey, Projection::kValue})
    clear(adapters[static_cast<size_t>(p)].b, shape_.key_width() * shape_.lora.rank);
}

// In a whole backward in fp32, `normed` and the gradient of the norm's output are the same memory, so the weight
// gradients must be computed first.
void Llama::backward_qkv(const LlamaBlock& w, const LlamaBlock& g, ConstValues normed) {
  const AttentionShape s = attention_shape();
  const BlockLinear q = queries_weight(w), k = key_projection(w), v = value_projection(w);
  const Values d_queries = block_data_.qkv_gradient, d_keys = d_queries.from(s.width()),
               d_values = d_keys.from(s.kv_width());
  float* to = partial_norm_gradient(block_data_.norm_1_gradient);
  const auto own_weight = [&](Values gradient) { return own_kv_rows(gradient, shape_.width); };
  const auto own_bias = [&](Values gradient) { return own_kv_rows(gradient, 1); };
  clear_shared_kv(g);
  linear_backward_weights(q, normed, d_queries, g.q_proj, g.q_bias);
  linear_backward_weights(k, normed, d_keys, own_weight(g.k_proj), own_bias(g.k_bias));
  linear_backward_weights(v, normed, d_values, own_weight(g.v_proj), own_bias(g.v_bias));
  input_gradient(std::array{OutputGradient{q, d_queries, DividedDimension::kHeads},
                            OutputGradient{k, d_keys, DividedDimension::kKvHeads},
                            OutputGradient{v, d_values, DividedDimension::kKvHeads}},
                 to);
}

}  // namespace aliquot
