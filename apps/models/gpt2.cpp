#include "apps/models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/error.h"

namespace aliquot {
namespace {

constexpr float kDeviation = 0.02f;
constexpr Initial kNormal{Initial::Kind::kNormal, kDeviation};
constexpr Initial kZero{Initial::Kind::kZero};
constexpr Initial kOne{Initial::Kind::kOne};

}  // namespace

Gpt2::Gpt2(const ModelShape& shape, const Gpt2Options& options, ThreadPool& pool)
    : shape_(shape),
      options_(options),
      pool_(pool),
      add_(options.gradients == GradientWrite::kAdd),
      add_table_(options.table_gradients == GradientWrite::kAdd) {
  check(shape_);
  if (options_.sequence == 0) options_.sequence = shape_.context;
  if (options_.sequence < 1 || options_.sequence > shape_.context) {
    throw UsageError("--sequence " + std::to_string(options_.sequence) + " does not fit the model's context of " +
                     std::to_string(shape_.context) + ": give 1 to that, or a larger --context.");
  }
  if (options_.batch < 1) throw UsageError("--micro-batch " + std::to_string(options_.batch) + ": give 1 or more.");
  declare_units();
  ActivationArena measure;
  lay_out(measure);
  activation_bytes_ = measure.used_bytes();
}

void Gpt2::declare_units() {
  const int64_t width = shape_.width;
  parameters_.blocks.resize(static_cast<size_t>(shape_.layers));
  gradients_.blocks.resize(static_cast<size_t>(shape_.layers));
  units_.push_back({"wte",
                    options_.table_gradients,
                    {{"weight", {shape_.vocabulary, width}, kNormal, &parameters_.wte, &gradients_.wte}}});
  units_.push_back(
      {"wpe", options_.gradients, {{"weight", {shape_.context, width}, kNormal, &parameters_.wpe, &gradients_.wpe}}});
  for (int64_t layer = 0; layer < shape_.layers; ++layer) declare_block(layer);
  units_.push_back({"ln_f",
                    options_.gradients,
                    {{"weight", {width}, kOne, &parameters_.ln_f_weight, &gradients_.ln_f_weight},
                     {"bias", {width}, kZero, &parameters_.ln_f_bias, &gradients_.ln_f_bias}}});
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) uses_.push_back(unit);
  uses_.push_back(0);
}

void Gpt2::declare_block(int64_t layer) {
  Gpt2Block& p = parameters_.blocks[static_cast<size_t>(layer)];
  Gpt2Block& g = gradients_.blocks[static_cast<size_t>(layer)];
  const int64_t width = shape_.width, hidden = shape_.hidden;
  // What enters the residual stream 2 x layers times is made smaller, so that its sum keeps its variance.
  const Initial residual{Initial::Kind::kNormal, kDeviation / std::sqrt(2.0f * static_cast<float>(shape_.layers))};
  units_.push_back({"h." + std::to_string(layer),
                    options_.gradients,
                    {{"ln_1.weight", {width}, kOne, &p.ln_1_weight, &g.ln_1_weight},
                     {"ln_1.bias", {width}, kZero, &p.ln_1_bias, &g.ln_1_bias},
                     {"attn.c_attn.weight", {width, 3 * width}, kNormal, &p.attn_weight, &g.attn_weight},
                     {"attn.c_attn.bias", {3 * width}, kZero, &p.attn_bias, &g.attn_bias},
                     {"attn.c_proj.weight", {width, width}, residual, &p.attn_proj_weight, &g.attn_proj_weight},
                     {"attn.c_proj.bias", {width}, kZero, &p.attn_proj_bias, &g.attn_proj_bias},
                     {"ln_2.weight", {width}, kOne, &p.ln_2_weight, &g.ln_2_weight},
                     {"ln_2.bias", {width}, kZero, &p.ln_2_bias, &g.ln_2_bias},
                     {"mlp.c_fc.weight", {width, hidden}, kNormal, &p.fc_weight, &g.fc_weight},
                     {"mlp.c_fc.bias", {hidden}, kZero, &p.fc_bias, &g.fc_bias},
                     {"mlp.c_proj.weight", {hidden, width}, residual, &p.proj_weight, &g.proj_weight},
                     {"mlp.c_proj.bias", {width}, kZero, &p.proj_bias, &g.proj_bias}}});
}

void Gpt2::lay_out(ActivationArena& arena) {
  const int64_t stream = rows() * shape_.width;
  blocks_.assign(static_cast<size_t>(shape_.layers), {});
  BlockActivations shared;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    BlockActivations& a = blocks_[layer];
    a.input = arena.take(stream);
    if (layer == 0 || !options_.recompute_blocks) {
      shared = {nullptr,
                arena.take(rows()),
                arena.take(rows()),
                arena.take(3 * stream),
                arena.take(stream),
                arena.take(rows() * shape_.heads),
                arena.take(stream),
                arena.take(rows()),
                arena.take(rows()),
                arena.take(rows() * shape_.hidden)};
    }
    shared.input = a.input;
    a = shared;
  }
  final_input_ = arena.take(stream);
  final_mean_ = arena.take(rows());
  final_rstd_ = arena.take(rows());
  final_output_ = arena.take(stream);
  loss_ = {arena.take(loss_shape().logits_elements()), arena.take(rows()), arena.take(rows()), arena.take(2 * rows())};
  gradient_ = arena.take(stream);
  narrow_ = arena.take(stream);
  wide_ = arena.take(rows() * std::max(shape_.hidden, 3 * shape_.width));
  attention_scratch_ = arena.take(pool_.thread_count() * attention_scratch_elements(attention_shape()));
}

void Gpt2::set_activations(std::byte* memory) {
  ActivationArena arena(memory);
  lay_out(arena);
}

void Gpt2::set_batch(const TokenBatch& batch) {
  for (const auto& [ids, what] : {std::pair{batch.tokens, "token"}, std::pair{batch.targets, "target"}}) {
    if (static_cast<int64_t>(ids.size()) != rows()) {
      throw UsageError("A micro-batch has " + std::to_string(ids.size()) + " " + what + "s where " +
                       std::to_string(rows()) + " are due: give batch x sequence of them.");
    }
    const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= shape_.vocabulary; });
    if (bad == ids.end()) continue;
    throw UsageError("The " + std::string(what) + " at place " + std::to_string(bad - ids.begin()) +
                     " of a micro-batch is " + std::to_string(*bad) + ", and the vocabulary has " +
                     std::to_string(shape_.vocabulary) + " entries: give --vocab, or data made for this model.");
  }
  batch_ = batch;
}

AttentionShape Gpt2::attention_shape() const {
  return {options_.batch, options_.sequence, shape_.heads, shape_.head_width()};
}

LossShape Gpt2::loss_shape() const { return {rows(), shape_.width, shape_.vocabulary, options_.keep_logits}; }

Embedding Gpt2::embedding() const { return {batch_.tokens.data(), rows(), shape_.width, shape_.vocabulary}; }

Positions Gpt2::positions() const { return {options_.batch, options_.sequence, shape_.width, shape_.context}; }

float* Gpt2::block_output(int64_t layer) const {
  return layer + 1 < shape_.layers ? blocks_[static_cast<size_t>(layer) + 1].input : final_input_;
}

}  // namespace aliquot
