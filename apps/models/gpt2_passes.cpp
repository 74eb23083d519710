// The passes of GPT-2, unit by unit.
#include "apps/models/gpt2.h"

namespace aliquot {

void Gpt2::forward(int use) {
  if (use == 0) return embedding_forward(pool_, embedding(), parameters_.wte, output());
  if (use == 1) return positions_forward(pool_, positions(), parameters_.wpe, input(), output());
  if (is_block(use)) return forward_block(parameters_.blocks[static_cast<size_t>(use - 2)]);
  if (use == 2 + shape_.layers) return forward_final_norm();
  forward_head(parameters_.wte);
}

/// All of a block but its last product, which backward reads nothing of.
void Gpt2::recompute(int use) {
  const Gpt2Block& w = parameters_.blocks[static_cast<size_t>(use - 2)];
  forward_attention(w);
  forward_mlp(w);
}

void Gpt2::backward(int use) {
  // The head has written the table's gradient whole, or added to it: either way tokens add to that.
  if (use == 0) return embedding_backward(pool_, embedding(), gradient_, gradients_.wte);
  if (use == 1) return positions_backward(pool_, positions(), gradient_, gradients_.wpe, adds());
  const auto layer = static_cast<size_t>(use - 2);
  if (is_block(use)) return backward_block(parameters_.blocks[layer], gradients_.blocks[layer]);
  if (use == 2 + shape_.layers) return backward_final_norm();
  backward_head(parameters_.wte, gradients_.wte, options_.table_gradients == GradientWrite::kAdd);
}

void Gpt2::forward_block(const Gpt2Block& w) {
  forward_attention(w);
  forward_mlp(w);
  gelu_forward(pool_, wide_, block_.before_gelu, rows() * shape_.hidden);
  linear_forward(pool_, linear(w.proj_weight, w.proj_bias, shape_.hidden, shape_.width), wide_, block_.middle,
                 output());
}

void Gpt2::forward_attention(const Gpt2Block& w) {
  const BlockActivations& a = block_;
  norm_again(input(), a.mean_1, a.rstd_1, w.ln_1_weight, w.ln_1_bias);
  linear_forward(pool_, linear(w.attn_weight, w.attn_bias, shape_.width, 3 * shape_.width), normed_, nullptr, a.qkv);
  attention_forward(pool_, {attention_shape(), a.qkv, a.attention, a.log_sums, attention_scratch_});
  linear_forward(pool_, linear(w.attn_proj_weight, w.attn_proj_bias, shape_.width, shape_.width), a.attention, input(),
                 a.middle);
}

void Gpt2::forward_mlp(const Gpt2Block& w) {
  const BlockActivations& a = block_;
  norm_again(a.middle, a.mean_2, a.rstd_2, w.ln_2_weight, w.ln_2_bias);
  linear_forward(pool_, linear(w.fc_weight, w.fc_bias, shape_.width, shape_.hidden), normed_, nullptr, a.before_gelu);
}

void Gpt2::backward_block(const Gpt2Block& w, const Gpt2Block& g) {
  gelu_forward(pool_, wide_, block_.before_gelu, rows() * shape_.hidden);
  backward_mlp(w, g);
  backward_attention(w, g);
}

void Gpt2::backward_mlp(const Gpt2Block& w, const Gpt2Block& g) {
  const BlockActivations& a = block_;
  const Linear proj = linear(w.proj_weight, w.proj_bias, shape_.hidden, shape_.width);
  const Linear fc = linear(w.fc_weight, w.fc_bias, shape_.width, shape_.hidden);
  const ConstValues from = gradient_for_products();
  linear_backward_weights(pool_, proj, wide_, from, {g.proj_weight, g.proj_bias, adds()});
  linear_backward_input(pool_, proj, from, wide_);
  gelu_backward(pool_, wide_, a.before_gelu, rows() * shape_.hidden);
  norm_again(a.middle, a.mean_2, a.rstd_2, w.ln_2_weight, w.ln_2_bias);
  linear_backward_weights(pool_, fc, normed_, wide_, {g.fc_weight, g.fc_bias, adds()});
  linear_backward_input(pool_, fc, wide_, narrow_);
  norm_backward({a.middle, w.ln_2_weight, a.mean_2, a.rstd_2, narrow_, gradient_, rows(), shape_.width, true},
                g.ln_2_weight, g.ln_2_bias);
}

void Gpt2::backward_attention(const Gpt2Block& w, const Gpt2Block& g) {
  const BlockActivations& a = block_;
  const Linear proj = linear(w.attn_proj_weight, w.attn_proj_bias, shape_.width, shape_.width);
  const Linear attn = linear(w.attn_weight, w.attn_bias, shape_.width, 3 * shape_.width);
  const ConstValues from = gradient_for_products();
  linear_backward_weights(pool_, proj, a.attention, from, {g.attn_proj_weight, g.attn_proj_bias, adds()});
  linear_backward_input(pool_, proj, from, narrow_);
  attention_backward(pool_, {attention_shape(), a.qkv, a.attention, a.log_sums, narrow_, wide_, attention_scratch_});
  norm_again(input(), a.mean_1, a.rstd_1, w.ln_1_weight, w.ln_1_bias);
  linear_backward_weights(pool_, attn, normed_, wide_, {g.attn_weight, g.attn_bias, adds()});
  linear_backward_input(pool_, attn, wide_, narrow_);
  norm_backward({input(), w.ln_1_weight, a.mean_1, a.rstd_1, narrow_, gradient_, rows(), shape_.width, true},
                g.ln_1_weight, g.ln_1_bias);
}

// A norm's output costs a pass over memory to make again and as much as its input to keep.
void Gpt2::norm_again(const float* x, float* mean, float* rstd, ConstValues weight, ConstValues bias) {
  layer_norm_forward(pool_, {x, weight, bias, mean, rstd, normed_, rows(), shape_.width});
}

void Gpt2::norm_backward(const LayerNormBackwardRows& a, Values d_weight, Values d_bias) {
  layer_norm_backward_weights(pool_, {.x = a.x,
                                      .mean = a.mean,
                                      .rstd = a.rstd,
                                      .from = a.from,
                                      .weight = d_weight,
                                      .bias = d_bias,
                                      .rows = a.rows,
                                      .width = a.width,
                                      .add = adds()});
  layer_norm_backward(pool_, a);
}

void Gpt2::forward_final_norm() {
  layer_norm_forward(pool_, {input(), parameters_.ln_f_weight, parameters_.ln_f_bias, final_mean_, final_rstd_,
                             normed_output(), rows(), shape_.width});
}

void Gpt2::backward_final_norm() {
  norm_backward(
      {input(), parameters_.ln_f_weight, final_mean_, final_rstd_, gradient_, gradient_, rows(), shape_.width, false},
      gradients_.ln_f_weight, gradients_.ln_f_bias);
}

}  // namespace aliquot
