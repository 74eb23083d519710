#include "apps/models/llama.h"

#include <cmath>
#include <string>

namespace aliquot {
namespace {

constexpr float kDeviation = 0.02f;
constexpr Initializer kNormal{Initializer::Kind::kNormal, kDeviation};
constexpr Initializer kZero{Initializer::Kind::kZero};
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
  const TensorDeclarations over_tensor(shape_, options_.tensor);
  units_.push_back(
      {"model.norm", options_.gradients, {tensor("weight", {shape_.width}, kOne, p.norm, g.norm, over_tensor.norm)}});
  if (shape_.tied) return;
  units_.push_back({"lm_head", options_.gradients, {table(of_tokens, kNormal, p.lm_head, g.lm_head)}});
}

void Llama::declare_block(int64_t layer) {
  LlamaBlock& p = parameters_.blocks[static_cast<size_t>(layer)];
  LlamaBlock& g = gradients_.blocks[static_cast<size_t>(layer)];
  const int64_t width = shape_.width, hidden = shape_.hidden, q_width = shape_.query_width(),
                kv_width = shape_.key_width();
  // Initializes the two matrices of each block whose outputs are added to the residual stream. The division makes the
  // variance of the sum over all blocks independent of the number of layers.
  const Initializer residual{Initializer::Kind::kNormal,
                             kDeviation / std::sqrt(2.0f * static_cast<float>(shape_.layers))};
  ModelUnit& unit = units_.emplace_back(ModelUnit{"model.layers." + std::to_string(layer), options_.gradients, {}});
  const TensorDeclarations t(shape_, options_.tensor);
  const auto add = [&](const char* name, std::vector<int64_t> shape, const Initializer& initial,
                       Values LlamaBlock::*member, const TensorDeclaration& over_tensor) {
    unit.tensors.push_back(tensor(name, std::move(shape), initial, p.*member, g.*member, over_tensor));
  };
  const auto add_bias = [&](bool exists, const char* name, int64_t outputs, Values LlamaBlock::*member,
                            const TensorDeclaration& over_tensor) {
    if (exists) add(name, {outputs}, kZero, member, over_tensor);
  };
  add("input_layernorm.weight", {width}, kOne, &LlamaBlock::input_norm, t.norm);
  add("self_attn.q_proj.weight", {q_width, width}, kNormal, &LlamaBlock::q_proj, t.query_rows);
  add_bias(shape_.qkv_bias, "self_attn.q_proj.bias", q_width, &LlamaBlock::q_bias, t.query_rows);
  add("self_attn.k_proj.weight", {kv_width, width}, kNormal, &LlamaBlock::k_proj, t.kv_rows);
  add_bias(shape_.qkv_bias, "self_attn.k_proj.bias", kv_width, &LlamaBlock::k_bias, t.kv_rows);
  add("self_attn.v_proj.weight", {kv_width, width}, kNormal, &LlamaBlock::v_proj, t.kv_rows);
  add_bias(shape_.qkv_bias, "self_attn.v_proj.bias", kv_width, &LlamaBlock::v_bias, t.kv_rows);
  add("self_attn.o_proj.weight", {width, q_width}, residual, &LlamaBlock::o_proj, t.query_columns);
  add_bias(shape_.output_bias, "self_attn.o_proj.bias", width, &LlamaBlock::o_bias, {});
  if (shape_.qk_norm) {
    add("self_attn.q_norm.weight", {shape_.head_width()}, kOne, &LlamaBlock::q_norm, t.head_norm);
    add("self_attn.k_norm.weight", {shape_.head_width()}, kOne, &LlamaBlock::k_norm, t.head_norm);
  }
  add("post_attention_layernorm.weight", {width}, kOne, &LlamaBlock::middle_norm, t.norm);
  add("mlp.gate_proj.weight", {hidden, width}, kNormal, &LlamaBlock::gate_proj, t.hidden_rows);
  add("mlp.up_proj.weight", {hidden, width}, kNormal, &LlamaBlock::up_proj, t.hidden_rows);
  add("mlp.down_proj.weight", {width, hidden}, residual, &LlamaBlock::down_proj, t.hidden_columns);
  declare_adapters(unit, layer);
}

/// No use reads its output in backward. The embedding does not read its input in backward either.
UseActivations Llama::use_of(int use) const {
  const bool is_norm = use == 1 + shape_.layers, is_head = use > 1 + shape_.layers;
  return {.output_bytes = is_head   ? 0
                          : is_norm ? head_input_bytes()
                                    : stream_bytes(),
          .recomputable = is_block(use),
          .input_in_backward = use > 0,
          .output_in_backward = false,
          .splits_backward = is_block(use),
          .collectives = is_block(use) ? block_collectives()
                         : use == 0    ? embedding_collectives()
                         : is_norm     ? final_norm_collectives()
                                       : head_collectives()};
}

void Llama::allocate_use(int use, UseArenas& memory) {
  layer_ = use - 1;
  window_ = is_block(use) ? shape_.window_of(layer_) : 0;
  if (is_block(use)) return allocate_block(memory);
  if (use > 1 + shape_.layers) return allocate_head(memory);
  if (use == 0) {
    allocate_embedding(memory.scratch);
    return allocate_row_sum_scratch(memory.scratch);
  }
  final_rstd_ = memory.kept.allocate(largest_.rows);
  allocate_norm_sums(memory.scratch, 1, false);
  allocate_row_sum_scratch(memory.scratch);
}

void Llama::allocate_block(UseArenas& memory) {
  ActivationArena &kept = memory.kept, &scratch = memory.scratch;
  const DType compute = options_.compute;
  BlockActivations& a = block_;
  const AttentionShape attention = largest_attention_shape();
  a.rstd_1 = kept.allocate(largest_.rows);
  a.qkv = kept.allocate(rows() * attention.stride(), compute);
  a.attention = kept.allocate(rows() * attention.width(), compute);
  a.log_sums = kept.allocate(rows() * largest_.heads);
  a.middle = kept.allocate(stream_elements());
  a.rstd_2 = kept.allocate(largest_.rows);
  a.gate = kept.allocate(rows() * largest_.hidden, compute);
  a.up = kept.allocate(rows() * largest_.hidden, compute);
  cosines_ = scratch.allocate(options_.sequence * shape_.head_width() / 2);
  sines_ = scratch.allocate(options_.sequence * shape_.head_width() / 2);
  allocate_block_scratch(scratch);
  allocate_block_data(memory.weight_inputs, a.qkv, false);
  if (shape_.qk_norm) allocate_qk_norms(memory);
  allocate_adapters(memory);
}

// Backward needs queries and keys before the norms and after the rotation. A block keeps those before the norms, and
// repeats norm and rotation in backward. Keeping both would need memory for every block.
void Llama::allocate_qk_norms(UseArenas& memory) {
  normed_qkv_ = memory.scratch.allocate(rows() * largest_attention_shape().stride(), options_.compute);
  q_rstd_ = memory.scratch.allocate(rows() * largest_.heads);
  k_rstd_ = memory.scratch.allocate(rows() * largest_.kv_heads);
  float* saved = memory.weight_inputs.allocate(2 * shape_.head_width());
  float* in_scratch = memory.scratch.allocate(2 * shape_.head_width());
  qk_norm_gradients_ = saved != nullptr ? saved : in_scratch;
}

Transformer::BlockLinear Llama::weight(Projection p, ConstValues matrix, int64_t inputs, int64_t outputs) const {
  BlockLinear l{p, block_linear(matrix, nullptr, inputs, outputs)};
  l.linear.outputs_first = true;
  return l;
}

Transformer::BlockLinear Llama::input_projection(Projection p, ConstValues matrix, ConstValues bias,
                                                 int64_t outputs) const {
  BlockLinear l = weight(p, matrix, shape_.width, outputs);
  l.linear.bias = bias;
  l.linear.output_stride = attention_shape().stride();
  return l;
}

Transformer::BlockLinear Llama::queries_weight(const LlamaBlock& w) const {
  return input_projection(Projection::kQuery, w.q_proj, w.q_bias, attention_shape().width());
}

Transformer::BlockLinear Llama::output_projection(const LlamaBlock& w) const {
  BlockLinear l = weight(Projection::kOutput, w.o_proj, attention_shape().width(), shape_.width);
  l.linear.bias = w.o_bias;
  return l;
}

Transformer::BlockLinear Llama::gate_weight(const LlamaBlock& w) const {
  return weight(Projection::kGate, w.gate_proj, shape_.width, own_.hidden);
}

Transformer::BlockLinear Llama::up_weight(const LlamaBlock& w) const {
  BlockLinear l = weight(Projection::kUp, w.up_proj, shape_.width, own_.hidden);
  l.linear.fp8.layers_before = 1;  // the gate
  l.linear.fp8.outputs_before = own_.hidden;
  return l;
}

Transformer::BlockLinear Llama::down_weight(const LlamaBlock& w) const {
  return weight(Projection::kDown, w.down_proj, own_.hidden, shape_.width);
}

/// The rows of the own heads in a weight or a bias of keys or values. Several ranks may have the full parameter.
Values Llama::own_kv_rows(Values parameter, int64_t row_elements) const {
  return parameter.from(own_.first_kv_head * shape_.head_width() * row_elements);
}

Transformer::BlockLinear Llama::key_projection(const LlamaBlock& w) const {
  BlockLinear l = input_projection(Projection::kKey, own_kv_rows(w.k_proj, shape_.width), own_kv_rows(w.k_bias, 1),
                                   attention_shape().kv_width());
  l.first_output = own_.first_kv_head * shape_.head_width();
  l.linear.fp8.layers_before = 1;
  l.linear.fp8.outputs_before = attention_shape().width();
  return l;
}

Transformer::BlockLinear Llama::value_projection(const LlamaBlock& w) const {
  BlockLinear l = input_projection(Projection::kValue, own_kv_rows(w.v_proj, shape_.width), own_kv_rows(w.v_bias, 1),
                                   attention_shape().kv_width());
  l.first_output = own_.first_kv_head * shape_.head_width();
  l.linear.fp8.layers_before = 2;
  l.linear.fp8.outputs_before = attention_shape().width() + attention_shape().kv_width();
  return l;
}

// Each block fills the cosines and sines in its scratch again, because keeping them would need memory during the whole
// step.
void Llama::apply_rotary(Values qkv, bool back) {
  backend_.rotary_angles(shape_, first_position() + options_.sequence, cosines_, sines_, first_position());
  backend_.rotate({.batch = options_.batch,
                   .sequence = options_.sequence,
                   .heads = own_.heads + own_.kv_heads,
                   .head_width = shape_.head_width(),
                   .stride = attention_shape().stride(),
                   .cosines = cosines_,
                   .sines = sines_,
                   .back = back},
                  qkv);
}

HeadNorms Llama::q_norm(const LlamaBlock& w) const {
  return {.x = block_.qkv,
          .weight = w.q_norm,
          .to = normed_qkv_,
          .rstd = q_rstd_,
          .rows = rows(),
          .heads = own_.heads,
          .head_width = shape_.head_width(),
          .stride = attention_shape().stride(),
          .epsilon = static_cast<float>(shape_.norm_epsilon)};
}

/// Also copies the values, which follow the keys.
HeadNorms Llama::k_norm(const LlamaBlock& w) const {
  HeadNorms norm = q_norm(w);
  const AttentionShape s = attention_shape();
  norm.x = block_.qkv.from(s.width());
  norm.weight = w.k_norm;
  norm.to = normed_qkv_.from(s.width());
  norm.rstd = k_rstd_;
  norm.heads = s.kv_heads;
  norm.copied = s.kv_width();
  return norm;
}

Transformer::Norm Llama::norm_1(const LlamaBlock& w) const {
  return {.x = input(), .rstd = block_.rstd_1, .weight = w.input_norm};
}

Transformer::Norm Llama::norm_2(const LlamaBlock& w) const {
  return {.x = block_.middle, .rstd = block_.rstd_2, .weight = w.middle_norm, .index = 1};
}

Transformer::Norm Llama::final_norm() const { return {.x = input(), .rstd = final_rstd_, .weight = parameters_.norm}; }

GatedElements Llama::gated() const { return {block_.gate, block_.up, hidden_elements()}; }

}  // namespace aliquot
