#include "apps/models/gpt2.h"

#include <cmath>
#include <string>

namespace aliquot {
namespace {

constexpr float kDeviation = 0.02f;
constexpr Initializer kNormal{Initializer::Kind::kNormal, kDeviation};
constexpr Initializer kZero{Initializer::Kind::kZero};
constexpr Initializer kOne{Initializer::Kind::kOne};

}  // namespace

Gpt2::Gpt2(const ModelShape& shape, const ModelOptions& options, Backend& backend)
    : Transformer(shape, options, backend) {
  declare_units();
  finish_declaration(shape_.tied ? 0 : -1);
}

void Gpt2::declare_units() {
  const int64_t width = shape_.width;
  const GradientMode write = options_.gradients;
  const TensorDeclarations over_tensor(shape_, options_.tensor);
  Gpt2Tensors &p = parameters_, &g = gradients_;
  p.blocks.resize(static_cast<size_t>(shape_.layers));
  g.blocks.resize(static_cast<size_t>(shape_.layers));
  const std::vector<int64_t> of_tokens{shape_.vocabulary, width};
  units_.push_back({"wte", shape_.tied ? options_.table_gradients : write, {table(of_tokens, kNormal, p.wte, g.wte)}});
  units_.push_back({"wpe", write, {table({shape_.context, width}, kNormal, p.wpe, g.wpe)}});
  units_.back().tensors[0].over_tensor = over_tensor.norm;
  for (int64_t layer = 0; layer < shape_.layers; ++layer) declare_block(layer);
  units_.push_back({"ln_f",
                    write,
                    {tensor("weight", {width}, kOne, p.ln_f_weight, g.ln_f_weight, over_tensor.norm),
                     tensor("bias", {width}, kZero, p.ln_f_bias, g.ln_f_bias, over_tensor.norm)}});
  if (shape_.tied) return;
  units_.push_back({"lm_head", write, {table(of_tokens, kNormal, p.lm_head, g.lm_head)}});
}

void Gpt2::declare_block(int64_t layer) {
  Gpt2Block& p = parameters_.blocks[static_cast<size_t>(layer)];
  Gpt2Block& g = gradients_.blocks[static_cast<size_t>(layer)];
  const int64_t width = shape_.width, hidden = shape_.hidden;
  // Initializes the two matrices of each block whose outputs are added to the residual stream. The division makes the
  // variance of the sum over all blocks independent of the number of layers.
  const Initializer residual{Initializer::Kind::kNormal,
                             kDeviation / std::sqrt(2.0f * static_cast<float>(shape_.layers))};
  const TensorDeclarations t(shape_, options_.tensor);
  ModelUnit& unit = units_.emplace_back(ModelUnit{"h." + std::to_string(layer), options_.gradients, {}});
  const auto add = [&](const char* name, std::vector<int64_t> shape, const Initializer& initial,
                       Values Gpt2Block::*member, const TensorDeclaration& over_tensor) {
    unit.tensors.push_back(tensor(name, std::move(shape), initial, p.*member, g.*member, over_tensor));
  };
  add("ln_1.weight", {width}, kOne, &Gpt2Block::ln_1_weight, t.norm);
  add("ln_1.bias", {width}, kZero, &Gpt2Block::ln_1_bias, t.norm);
  add("attn.c_attn.weight", {width, 3 * width}, kNormal, &Gpt2Block::attn_weight, t.packed_columns);
  add("attn.c_attn.bias", {3 * width}, kZero, &Gpt2Block::attn_bias, t.packed_rows);
  add("attn.c_proj.weight", {width, width}, residual, &Gpt2Block::attn_proj_weight, t.query_rows);
  add("attn.c_proj.bias", {width}, kZero, &Gpt2Block::attn_proj_bias, {});
  add("ln_2.weight", {width}, kOne, &Gpt2Block::ln_2_weight, t.norm);
  add("ln_2.bias", {width}, kZero, &Gpt2Block::ln_2_bias, t.norm);
  add("mlp.c_fc.weight", {width, hidden}, kNormal, &Gpt2Block::fc_weight, t.hidden_columns);
  add("mlp.c_fc.bias", {hidden}, kZero, &Gpt2Block::fc_bias, t.hidden_rows);
  add("mlp.c_proj.weight", {hidden, width}, residual, &Gpt2Block::proj_weight, t.hidden_rows);
  add("mlp.c_proj.bias", {width}, kZero, &Gpt2Block::proj_bias, {});
  declare_adapters(unit, layer);
}

/// No use reads its output in backward. The two embeddings do not read their input in backward either.
UseActivations Gpt2::use_of(int use) const {
  const bool embeds = use<2, is_norm = use == 2 + shape_.layers, is_head = use> 2 + shape_.layers;
  return {.output_bytes = is_head   ? 0
                          : is_norm ? head_input_bytes()
                                    : stream_bytes(),
          .recomputable = is_block(use),
          .input_in_backward = !embeds,
          .output_in_backward = false,
          .splits_backward = is_block(use),
          .collectives = is_block(use) ? block_collectives()
                         : use == 0    ? embedding_collectives()
                         : use == 1    ? position_collectives()
                         : is_norm     ? final_norm_collectives()
                                       : head_collectives()};
}

void Gpt2::allocate_use(int use, UseArenas& memory) {
  layer_ = use - 2;
  if (is_block(use)) return allocate_block(memory);
  if (use > 2 + shape_.layers) return allocate_head(memory);
  if (use == 0) {
    allocate_embedding(memory.scratch);
    return allocate_row_sum_scratch(memory.scratch);
  }
  if (use == 1) return allocate_position_sums(memory.scratch);
  final_mean_ = memory.kept.allocate(largest_.rows);
  final_rstd_ = memory.kept.allocate(largest_.rows);
  allocate_norm_sums(memory.scratch, 1, false);
  allocate_row_sum_scratch(memory.scratch);
}

void Gpt2::allocate_block(UseArenas& memory) {
  ActivationArena& kept = memory.kept;
  const DType compute = options_.compute;
  BlockActivations& a = block_;
  const AttentionShape attention = largest_attention_shape();
  a.mean_1 = kept.allocate(largest_.rows);
  a.rstd_1 = kept.allocate(largest_.rows);
  a.qkv = kept.allocate(rows() * attention.stride(), compute);
  a.attention = kept.allocate(rows() * attention.width(), compute);
  a.log_sums = kept.allocate(rows() * largest_.heads);
  a.middle = kept.allocate(stream_elements());
  a.mean_2 = kept.allocate(largest_.rows);
  a.rstd_2 = kept.allocate(largest_.rows);
  a.before_gelu = kept.allocate(rows() * largest_.hidden, compute);
  allocate_block_scratch(memory.scratch);
  allocate_block_data(memory.weight_inputs, a.qkv, true);
  allocate_adapters(memory);
}

Positions Gpt2::positions() const {
  return {own_.rows, options_.sequence, shape_.width, shape_.context, own_.first_row};
}

}  // namespace aliquot
