// The passes of GPT-2, unit by unit.
#include "apps/models/gpt2.h"

namespace aliquot {

void Gpt2::forward(int use) {
  const int64_t layer = use - 2;
  float* stream = blocks_.front().input;
  if (use == 0) return embedding_forward(pool_, embedding(), parameters_.wte, stream);
  if (use == 1) return positions_forward(pool_, positions(), parameters_.wpe, stream);
  if (layer < shape_.layers) return forward_block(layer);
  if (layer == shape_.layers) return forward_final_norm();
  forward_head(parameters_.wte);
}

void Gpt2::backward(int use) {
  const int64_t layer = use - 2;
  // The head has written the table's gradient whole, or added to it: either way tokens add to that.
  if (use == 0) return embedding_backward(pool_, embedding(), gradient_, gradients_.wte);
  if (use == 1) return positions_backward(pool_, positions(), gradient_, gradients_.wpe, adds());
  if (layer < shape_.layers) return backward_block(layer);
  if (layer == shape_.layers) return backward_final_norm();
  backward_head(parameters_.wte, gradients_.wte, options_.table_gradients == GradientWrite::kAdd);
}

void Gpt2::forward_block(int64_t layer) {
  const Gpt2Block& w = parameters_.blocks[static_cast<size_t>(layer)];
  const BlockActivations& a = blocks_[static_cast<size_t>(layer)];
  forward_attention(w, a);
  forward_mlp(w, a);
  linear_forward(pool_, linear(w.proj_weight, w.proj_bias, shape_.hidden, shape_.width), wide_, a.middle,
                 block_output(layer));
}

void Gpt2::forward_attention(const Gpt2Block& w, const BlockActivations& a) {
  norm_again(a.input, a.mean_1, a.rstd_1, w.ln_1_weight, w.ln_1_bias);
  linear_forward(pool_, linear(w.attn_weight, w.attn_bias, shape_.width, 3 * shape_.width), normed_, nullptr, a.qkv);
  attention_forward(pool_, {attention_shape(), a.qkv, a.attention, a.log_sums, attention_scratch_});
  linear_forward(pool_, linear(w.attn_proj_weight, w.attn_proj_bias, shape_.width, shape_.width), a.attention, a.input,
                 a.middle);
}

// Up to gelu's output, in wide_: what backward needs to have again.
void Gpt2::forward_mlp(const Gpt2Block& w, const BlockActivations& a) {
  norm_again(a.middle, a.mean_2, a.rstd_2, w.ln_2_weight, w.ln_2_bias);
  linear_forward(pool_, linear(w.fc_weight, w.fc_bias, shape_.width, shape_.hidden), normed_, nullptr, a.before_gelu);
  gelu_forward(pool_, wide_, a.before_gelu, rows() * shape_.hidden);
}

void Gpt2::backward_block(int64_t layer) {
  const Gpt2Block& w = parameters_.blocks[static_cast<size_t>(layer)];
  const Gpt2Block& g = gradients_.blocks[static_cast<size_t>(layer)];
  const BlockActivations& a = blocks_[static_cast<size_t>(layer)];
  if (options_.recompute_blocks) {
    forward_attention(w, a);
    forward_mlp(w, a);
  } else {
    gelu_forward(pool_, wide_, a.before_gelu, rows() * shape_.hidden);
  }
  backward_mlp(w, g, a);
  backward_attention(w, g, a);
}

void Gpt2::backward_mlp(const Gpt2Block& w, const Gpt2Block& g, const BlockActivations& a) {
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

void Gpt2::backward_attention(const Gpt2Block& w, const Gpt2Block& g, const BlockActivations& a) {
  const Linear proj = linear(w.attn_proj_weight, w.attn_proj_bias, shape_.width, shape_.width);
  const Linear attn = linear(w.attn_weight, w.attn_bias, shape_.width, 3 * shape_.width);
  const ConstValues from = gradient_for_products();
  linear_backward_weights(pool_, proj, a.attention, from, {g.attn_proj_weight, g.attn_proj_bias, adds()});
  linear_backward_input(pool_, proj, from, narrow_);
  attention_backward(pool_, {attention_shape(), a.qkv, a.attention, a.log_sums, narrow_, wide_, attention_scratch_});
  norm_again(a.input, a.mean_1, a.rstd_1, w.ln_1_weight, w.ln_1_bias);
  linear_backward_weights(pool_, attn, normed_, wide_, {g.attn_weight, g.attn_bias, adds()});
  linear_backward_input(pool_, attn, wide_, narrow_);
  norm_backward({a.input, w.ln_1_weight, a.mean_1, a.rstd_1, narrow_, gradient_, rows(), shape_.width, true},
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
  layer_norm_forward(pool_, {final_input_, parameters_.ln_f_weight, parameters_.ln_f_bias, final_mean_, final_rstd_,
                             final_output_, rows(), shape_.width});
}

void Gpt2::backward_final_norm() {
  norm_backward({final_input_, parameters_.ln_f_weight, final_mean_, final_rstd_, gradient_, gradient_, rows(),
                 shape_.width, false},
                gradients_.ln_f_weight, gradients_.ln_f_bias);
}

}  // namespace aliquot
