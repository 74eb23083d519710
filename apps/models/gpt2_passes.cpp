// Forward, recompute and backward of each use of GPT-2.
#include <array>

#include "apps/models/gpt2.h"

namespace aliquot {

void Gpt2::forward(int use) {
  if (use == 0) return embedding_forward(parameters_.wte);
  if (use == 1) {
    const Values table = parameters_.wpe.from(first_position() * shape_.width);
    return backend_.positions_forward(positions(), table, input(), output());
  }
  if (is_block(use)) return forward_block(parameters_.blocks[static_cast<size_t>(use - 2)]);
  if (use == 2 + shape_.layers) return final_norm_forward(final_norm());
  forward_head(head());
}

/// Repeats the forward of the block without the last matrix product, whose result is not saved. Only an adapter of that
/// product saves values that it computes from the GELU.
void Gpt2::recompute(int use) {
  const Gpt2Block& w = parameters_.blocks[static_cast<size_t>(use - 2)];
  const bool adapts_down = shape_.lora.adapts(Projection::kDown);
  forward_attention(w);
  forward_mlp(w, adapts_down);
  if (adapts_down) inner_forward(proj_linear(w), wide_scratch_);
}

void Gpt2::backward(int use) {
  part_ = BackwardPart::kWhole;
  if (use == 0) {
    // The backward of a tied head has already written the gradient of the shared table, so this backward adds to it.
    return embedding_backward(gradients_.wte, shape_.tied || adds());
  }
  if (use == 1) return backward_positions();
  const auto layer = static_cast<size_t>(use - 2);
  if (is_block(use)) return backward_block(parameters_.blocks[layer], gradients_.blocks[layer]);
  if (use == 2 + shape_.layers) return backward_final_norm();
  if (shape_.tied) return backward_head(head(), gradients_.wte, options_.table_gradients == GradientMode::kAdd);
  backward_head(head(), gradients_.lm_head, adds());
}

void Gpt2::backward_input(int use) {
  part_ = BackwardPart::kInput;
  const Gpt2Block& w = parameters_.blocks[static_cast<size_t>(use - 2)];
  save_norms(norm_1(w), norm_2(w));
  backward_block(w, {});
}

void Gpt2::backward_weights(int use) {
  part_ = BackwardPart::kWeights;
  Gpt2Block w;  // only the values that this part reads
  w.ln_1_weight = block_data_.norm_1_weight;
  w.ln_1_bias = block_data_.norm_1_bias;
  w.ln_2_weight = block_data_.norm_2_weight;
  w.ln_2_bias = block_data_.norm_2_bias;
  backward_block(w, gradients_.blocks[static_cast<size_t>(use - 2)]);
}

void Gpt2::forward_block(const Gpt2Block& w) {
  forward_attention(w);
  forward_mlp(w, true);
  add_to_stream(proj_linear(w), {wide_scratch_, DividedDimension::kHidden}, block_.middle, output(), "mlp output");
}

void Gpt2::forward_attention(const Gpt2Block& w) {
  const BlockActivations& a = block_;
  norm_forward_of_all(norm_1(w), "attention input");
  linear_forward(attn_linear(w), normed_, a.qkv);
  attend(a.qkv, a.attention, a.log_sums);
  add_to_stream(attn_proj_linear(w), {a.attention, DividedDimension::kHeads}, input(), a.middle, "attention output");
}

/// Computes the GELU of the hidden elements in wide_scratch_.
void Gpt2::forward_mlp(const Gpt2Block& w, bool needs_gelu) {
  norm_forward_of_all(norm_2(w), "mlp input");
  linear_gelu_forward(fc_linear(w), normed_, block_.before_gelu, wide_scratch_, needs_gelu);
}

void Gpt2::backward_block(const Gpt2Block& w, const Gpt2Block& g) {
  backward_mlp(w, g);
  backward_attention(w, g);
  finish_norm_gradients(
      std::array{norm_gradient(0, g.ln_1_weight, g.ln_1_bias), norm_gradient(1, g.ln_2_weight, g.ln_2_bias)});
}

// BlockData::wide is the gradient of before_gelu. In a whole backward, it uses the same memory as the GELU's output.
void Gpt2::backward_mlp(const Gpt2Block& w, const Gpt2Block& g) {
  const BlockActivations& a = block_;
  const BlockLinear proj = proj_linear(w), fc = fc_linear(w);
  const BlockData& d = block_data_;
  if (in_weights_part()) backend_.gelu_forward(wide_scratch_, a.before_gelu, hidden_elements());
  const ConstValues from = gradient_for_products(d.mlp_gradient, "mlp output gradient");
  linear_backward_weights(proj, wide_scratch_, from, g.proj_weight, g.proj_bias);
  linear_gelu_backward_input(proj, from, a.before_gelu, d.wide);
  const ConstValues normed = normed_for_products(norm_2(w), d.normed_2, "mlp input again");
  linear_backward_weights(fc, normed, d.wide, g.fc_weight, g.fc_bias);
  input_gradient(std::array{OutputGradient{fc, d.wide, DividedDimension::kHidden}},
                 partial_norm_gradient(d.norm_2_gradient));
  sum_norm_gradient(d.norm_2_gradient, "mlp input gradient");
  norm_backward(norm_2(w), d.norm_2_gradient, g.ln_2_weight, g.ln_2_bias);
}

void Gpt2::backward_attention(const Gpt2Block& w, const Gpt2Block& g) {
  const BlockActivations& a = block_;
  const AttentionShape s = attention_shape();
  const BlockLinear proj = attn_proj_linear(w), attn = attn_linear(w);
  const BlockData& d = block_data_;
  const ConstValues from = gradient_for_products(d.attention_gradient, "attention output gradient");
  linear_backward_weights(proj, a.attention, from, g.attn_proj_weight, g.attn_proj_bias);
  linear_backward_input(proj, from, normed_gradient_);
  if (in_input_part()) {
    backend_.attention_backward(
        {s, a.qkv, a.attention, a.log_sums, normed_gradient_, d.qkv_gradient, attention_scratch_});
  }
  const ConstValues normed = normed_for_products(norm_1(w), d.normed_1, "attention input again");
  linear_backward_weights(attn, normed, d.qkv_gradient, g.attn_weight, g.attn_bias);
  backward_qkv(attn, partial_norm_gradient(d.norm_1_gradient));
  sum_norm_gradient(d.norm_1_gradient, "attention input gradient");
  norm_backward(norm_1(w), d.norm_1_gradient, g.ln_1_weight, g.ln_1_bias);
}

void Gpt2::backward_positions() {
  if (!trains_base()) return;
  if (fixed_leaves()) return positions_backward_leaves(positions(), gradients_.wpe);
  backend_.positions_backward(positions(), gradient_, gradients_.wpe, adds());
}

// Leaves of queries, keys and values are not contiguous in the packed matrix.
void Gpt2::backward_qkv(const BlockLinear& attn, float* to) {
  const Values from = block_data_.qkv_gradient;
  if (!fixed_leaves()) return input_gradient(std::array{OutputGradient{attn, from, DividedDimension::kHeads}}, to);
  const int64_t width = attention_shape().width();
  const auto part = [&](int64_t i) {
    const BlockLinear own{attn.projection, attn.linear.with_outputs(i * width, width)};
    return OutputGradient{own, from.from(i * width), DividedDimension::kHeads};
  };
  input_gradient(std::array{part(0), part(1), part(2)}, to);
}

void Gpt2::backward_final_norm() {
  norm_backward(final_norm(), gradient_, gradients_.ln_f_weight, gradients_.ln_f_bias, false);
  finish_norm_gradients(std::array{norm_gradient(0, gradients_.ln_f_weight, gradients_.ln_f_bias)});
}

Transformer::BlockLinear Gpt2::attn_linear(const Gpt2Block& w) const {
  return {Projection::kPacked, block_linear(w.attn_weight, w.attn_bias, shape_.width, attention_shape().stride())};
}

Transformer::BlockLinear Gpt2::attn_proj_linear(const Gpt2Block& w) const {
  return {Projection::kOutput,
          block_linear(w.attn_proj_weight, w.attn_proj_bias, attention_shape().width(), shape_.width)};
}

Transformer::BlockLinear Gpt2::fc_linear(const Gpt2Block& w) const {
  return {Projection::kUp, block_linear(w.fc_weight, w.fc_bias, shape_.width, own_.hidden)};
}

Transformer::BlockLinear Gpt2::proj_linear(const Gpt2Block& w) const {
  return {Projection::kDown, block_linear(w.proj_weight, w.proj_bias, own_.hidden, shape_.width)};
}

Transformer::Norm Gpt2::norm_1(const Gpt2Block& w) const {
  return {input(), block_.mean_1, block_.rstd_1, w.ln_1_weight, w.ln_1_bias};
}

Transformer::Norm Gpt2::norm_2(const Gpt2Block& w) const {
  return {block_.middle, block_.mean_2, block_.rstd_2, w.ln_2_weight, w.ln_2_bias, 1};
}

Transformer::Norm Gpt2::final_norm() const {
  return {input(), final_mean_, final_rstd_, parameters_.ln_f_weight, parameters_.ln_f_bias};
}

}  // namespace aliquot
