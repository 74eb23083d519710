#include "apps/models/llama.h"

#include <cmath>
#include <string>

namespace aliquot {
namespace {

constexpr float kDeviation = 0.02f;
constexpr Initializer kNormal{Initializer::Kind::kNormal, kDeviation};
constexpr Initializer kOne{Initializer::Kind::kOne};

}  // namespace

Llama::Llama(const ModelShape& shape, const ModelOptions& options, Backend& backend)
    : Transformer(shape, options, backend) {
  declare_units();
  finish_declaration(shape_.tied ? 0 : -1);
}

void Llama::declare_units() {
  const std::vector<int64_t> of_tokens{shape_.vocabulary, shape_.width};
  LlamaTensors &p = parameters_, &g = gradients_;
  p.blocks.resize(static_cast<size_t>(shape_.layers));
  g.blocks.resize(static_cast<size_t>(shape_.layers));
  units_.push_back({"model.embed_tokens",
                    shape_.tied ? options_.table_gradients : options_.gradients,
                    {table(of_tokens, kNormal, p.embed_tokens, g.embed_tokens)}});
  for (int64_t layer = 0; layer < shape_.layers; ++layer) declare_block(layer);
  units_.push_back({"model.norm", options_.gradients, {tensor("weight", {shape_.width}, kOne, p.norm, g.norm)}});
  if (shape_.tied) return;
  units_.push_back({"lm_head", options_.gradients, {table(of_tokens, kNormal, p.lm_head, g.lm_head)}});
}

void Llama::declare_block(int64_t layer) {
  LlamaBlock& p = parameters_.blocks[static_cast<size_t>(layer)];
  LlamaBlock& g = gradients_.blocks[static_cast<size_t>(layer)];
  const int64_t width = shape_.width, hidden = shape_.hidden, kv_width = shape_.kv_heads * shape_.head_width();
  // Initializes the two matrices of each block whose outputs are added to the residual stream. The division makes the
  // variance of the sum over all blocks independent of the number of layers.
  const Initializer residual{Initializer::Kind::kNormal,
                             kDeviation / std::sqrt(2.0f * static_cast<float>(shape_.layers))};
  units_.push_back({"model.layers." + std::to_string(layer),
                    options_.gradients,
                    {tensor("input_layernorm.weight", {width}, kOne, p.input_norm, g.input_norm),
                     tensor("self_attn.q_proj.weight", {width, width}, kNormal, p.q_proj, g.q_proj),
                     tensor("self_attn.k_proj.weight", {kv_width, width}, kNormal, p.k_proj, g.k_proj),
                     tensor("self_attn.v_proj.weight", {kv_width, width}, kNormal, p.v_proj, g.v_proj),
                     tensor("self_attn.o_proj.weight", {width, width}, residual, p.o_proj, g.o_proj),
                     tensor("post_attention_layernorm.weight", {width}, kOne, p.middle_norm, g.middle_norm),
                     tensor("mlp.gate_proj.weight", {hidden, width}, kNormal, p.gate_proj, g.gate_proj),
                     tensor("mlp.up_proj.weight", {hidden, width}, kNormal, p.up_proj, g.up_proj),
                     tensor("mlp.down_proj.weight", {width, hidden}, residual, p.down_proj, g.down_proj)}});
}

/// No use reads its output in backward. The embedding does not read its input in backward either.
UseActivations Llama::use_of(int use) const {
  const bool is_norm = use == 1 + shape_.layers, is_head = use > 1 + shape_.layers;
  return {.output_bytes = is_head   ? 0
                          : is_norm ? normed_bytes()
                                    : stream_bytes(),
          .recomputable = is_block(use),
          .input_in_backward = use > 0,
          .output_in_backward = false,
          .splits_backward = is_block(use)};
}

void Llama::allocate_use(int use, UseArenas& memory) {
  if (is_block(use)) return allocate_block(memory);
  if (use > 1 + shape_.layers) return allocate_head(memory);
  if (use > 0) final_rstd_ = memory.kept.allocate(rows());
}

void Llama::allocate_block(UseArenas& memory) {
  ActivationArena &kept = memory.kept, &scratch = memory.scratch;
  const DType compute = options_.compute;
  BlockActivations& a = block_;
  a.rstd_1 = kept.allocate(rows());
  a.qkv = kept.allocate(rows() * attention_shape().stride(), compute);
  a.attention = kept.allocate(stream_elements(), compute);
  a.log_sums = kept.allocate(rows() * shape_.heads);
  a.middle = kept.allocate(stream_elements());
  a.rstd_2 = kept.allocate(rows());
  a.gate = kept.allocate(rows() * shape_.hidden, compute);
  a.up = kept.allocate(rows() * shape_.hidden, compute);
  cosines_ = scratch.allocate(options_.sequence * shape_.head_width() / 2);
  sines_ = scratch.allocate(options_.sequence * shape_.head_width() / 2);
  allocate_block_scratch(scratch);
  allocate_block_data(memory.weight_inputs, a.qkv, false);
}

Linear Llama::weight(ConstValues matrix, int64_t inputs, int64_t outputs) const {
  Linear l = linear(matrix, nullptr, inputs, outputs);
  l.outputs_first = true;
  return l;
}

Linear Llama::qkv_weight(ConstValues matrix, int64_t outputs) const {
  Linear l = weight(matrix, shape_.width, outputs);
  l.output_stride = attention_shape().stride();
  return l;
}

// Each block fills the cosines and sines in its scratch again, because keeping them would need memory during the whole
// step.
void Llama::apply_rotary(Values qkv, bool back) {
  backend_.rotary_angles(shape_, options_.sequence, cosines_, sines_);
  backend_.rotate({.batch = options_.batch,
                   .sequence = options_.sequence,
                   .heads = shape_.heads + shape_.kv_heads,
                   .head_width = shape_.head_width(),
                   .stride = attention_shape().stride(),
                   .cosines = cosines_,
                   .sines = sines_,
                   .back = back},
                  qkv);
}

Transformer::Norm Llama::norm_1(const LlamaBlock& w) const {
  return {.x = input(), .rstd = block_.rstd_1, .weight = w.input_norm};
}

Transformer::Norm Llama::norm_2(const LlamaBlock& w) const {
  return {.x = block_.middle, .rstd = block_.rstd_2, .weight = w.middle_norm};
}

Transformer::Norm Llama::final_norm() const { return {.x = input(), .rstd = final_rstd_, .weight = parameters_.norm}; }

GatedElements Llama::gated() const { return {block_.gate, block_.up, rows() * shape_.hidden}; }

}  // namespace aliquot
