#include "apps/models/transformer.h"

#include <algorithm>
#include <string>

#include "kernels/system/error.h"

namespace aliquot {

Transformer::Transformer(const ModelShape& shape, const ModelOptions& options, Backend& backend)
    : shape_(shape), options_(options), backend_(backend) {
  check(shape_);
  if (options_.sequence == 0) options_.sequence = shape_.context;
  if (options_.sequence < 1 || !shape_.accepts_sequence(options_.sequence)) {
    throw UsageError("--sequence " + std::to_string(options_.sequence) + " does not fit the model's context of " +
                     std::to_string(shape_.context) + ": expected 1 to " + std::to_string(shape_.context) +
                     ", or a larger --context.");
  }
  if (options_.batch < 1)
    throw UsageError("--micro-batch " + std::to_string(options_.batch) + ": expected a positive integer.");
  check_tensor_group(shape_, options_.tensor);
  if (options_.decode_positions > shape_.context)
    throw UsageError("a sequence of " + std::to_string(options_.decode_positions) +
                     " tokens does not fit the model's context of " + std::to_string(shape_.context) + ".");
  batch_ = options_.batch;
  sequence_ = options_.sequence;
  check_row_leaves(options_.tensor, rows());
  if (fixed_leaves()) leaves_ = tensor_leaves(shape_, options_.tensor);
  set_extents(batch_, sequence_);
  adapters_.resize(static_cast<size_t>(shape_.layers));
  adapter_gradients_.resize(static_cast<size_t>(shape_.layers));
}

void Transformer::set_extents(int64_t batch, int64_t sequence) {
  options_.batch = batch;
  options_.sequence = sequence;
  // A decoding pass has fewer rows than a micro-batch, for which the collectives are declared. So the ranks divide the
  // rows of a micro-batch, and some ranks may have no row of the pass.
  own_ = tensor_part(shape_, options_.tensor, batch_ * sequence_);
  own_.first_row = std::min(own_.first_row, rows());
  own_.rows = std::min(own_.rows, rows() - own_.first_row);
  largest_ = largest_tensor_part(shape_, options_.tensor, batch_ * sequence_);
  if (fixed_leaves()) row_leaves_ = row_leaves(options_.tensor, rows());
}

void Transformer::finish_declaration(int head) {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) uses_.push_back(unit);
  if (head >= 0) uses_.push_back(head);
  for (int use = 0; use < static_cast<int>(uses_.size()); ++use) {
    UseArenas sizes;
    allocate_use(use, sizes);
    UseActivations& declared = activations_.uses.emplace_back(use_of(use));
    declared.kept_bytes = sizes.kept.used_bytes();
    declared.scratch_bytes = sizes.scratch.used_bytes();
    declared.weight_inputs_bytes = sizes.weight_inputs.used_bytes();
  }
  activations_.backward_bytes = stream_bytes();
}

void Transformer::set_memory(const UseMemory& memory) {
  memory_ = memory;
  gradient_ = static_cast<float*>(memory.backward);
  const auto arena = [](void* at) { return ActivationArena(static_cast<std::byte*>(at)); };
  UseArenas arenas{arena(memory.kept), arena(memory.scratch), arena(memory.weight_inputs)};
  // Collectives are declared with offsets in the memory of a whole micro-batch.
  const int64_t batch = options_.batch, sequence = options_.sequence;
  if (decoding_) set_extents(batch_, sequence_);
  layer_scratch_ = {};
  allocate_use(memory.use, arenas);
  if (decoding_) set_extents(batch, sequence);
}

void Transformer::allocate_block_scratch(ActivationArena& scratch) {
  const DType compute = options_.compute;
  const bool rounds = compute != DType::kFloat32;
  const AttentionShape attention = largest_attention_shape();
  const int64_t all = all_stream_elements();
  const int64_t fp32_offset_bytes = scratch.used_bytes();
  normed_gradient_ = scratch.allocate(std::max(all, rows() * attention.width()));
  normed_offset_bytes_ = rounds ? scratch.used_bytes() : fp32_offset_bytes;
  normed_ = rounds ? scratch.allocate(all, compute) : Values(normed_gradient_);
  // Sums in fp16 could overflow, and rounded sums of leaves would depend on the number of ranks.
  const bool in_fp32 = compute == DType::kFloat16 || fixed_leaves();
  sums_ = in_fp32 ? Values(normed_gradient_) : normed_;
  sums_offset_bytes_ = in_fp32 ? fp32_offset_bytes : normed_offset_bytes_;
  rounded_gradient_offset_bytes_ = scratch.used_bytes();
  rounded_gradient_ = scratch.allocate(rounds || divides_rows() ? all : 0, compute);
  wide_scratch_ = scratch.allocate(rows() * std::max(largest_.hidden, attention.stride()), compute);
  attention_scratch_ =
      scratch.allocate(backend_.attention_scratch_elements(attention_scratch_shape(), options_.compute));
  product_scratch_ = allocate_product_scratch(scratch);
  layer_scratch_ = {product_scratch_, product_scratch_elements()};
  allocate_fp8_scratch(scratch);
  allocate_stream_leaves(scratch);
  allocate_norm_sums(scratch, 2, shape_.qk_norm);
}

void Transformer::allocate_block_data(ActivationArena& weight_inputs, Values qkv, bool norms_have_bias) {
  const DType compute = options_.compute;
  const bool splits = memory_.weight_inputs != nullptr;
  const auto allocate = [&](int64_t element_count, DType type, Values in_scratch) {
    const Values saved = weight_inputs.allocate(element_count, type);
    return splits ? saved : in_scratch;
  };
  const bool reads_gradient = compute == DType::kFloat32 && !divides_rows();
  const Values stream_gradient = reads_gradient ? Values(gradient_) : rounded_gradient_;
  const Values norm_gradient = own_rows_of(normed_gradient_);
  const int64_t qkv_elements = rows() * largest_attention_shape().stride();
  const int64_t norm_biases = norms_have_bias ? shape_.width : 0;
  BlockData& d = block_data_;
  d.wide = allocate(rows() * largest_.hidden, compute, wide_scratch_);
  d.mlp_gradient = allocate(all_stream_elements(), compute, stream_gradient);
  d.attention_gradient = allocate(all_stream_elements(), compute, stream_gradient);
  d.qkv_gradient = allocate(qkv_elements, compute, wide_scratch_);
  d.norm_2_gradient = allocate(stream_elements(), DType::kFloat32, norm_gradient).fp32();
  // The input part computes this gradient after its last access to qkv.
  const bool fits = qkv_elements * element_bytes(compute) >= stream_elements() * element_bytes(DType::kFloat32);
  d.norm_1_gradient = !fits    ? allocate(stream_elements(), DType::kFloat32, norm_gradient).fp32()
                      : splits ? static_cast<float*>(qkv.data)
                               : norm_gradient.fp32();
  d.normed_1 = divides_rows() ? allocate(all_stream_elements(), compute, normed_) : normed_;
  d.normed_2 = divides_rows() ? allocate(all_stream_elements(), compute, normed_) : normed_;
  d.norm_1_weight = allocate(shape_.width, compute, nullptr);
  d.norm_1_bias = allocate(norm_biases, compute, nullptr);
  d.norm_2_weight = allocate(shape_.width, compute, nullptr);
  d.norm_2_bias = allocate(norm_biases, compute, nullptr);
}

void Transformer::allocate_head(UseArenas& memory) {
  const LossShape loss = loss_shape(largest_);
  const bool rounds = backend_.logit_tiles(options_.compute).in_fp32;
  // If backward recomputes the logits, they need no memory between forward and backward.
  ActivationArena &kept = memory.kept, &scratch = memory.scratch;
  const bool separates_leaves = fixed_leaves() && loss.keep_logits && loss.row_multiple != 0;
  const int64_t logits =
      separates_leaves ? std::ssize(leaves_) * largest_leaf_loss().logits_elements() : loss.logits_elements();
  loss_.logits = (loss.keep_logits ? kept : scratch).allocate(logits, options_.compute);
  loss_.maxima = kept.allocate(rows());
  loss_.log_sums = kept.allocate(rows());
  loss_.scratch = scratch.allocate(2 * rows());
  loss_.tile = scratch.allocate(rounds ? rows() * loss.tile_entries() : 0);
  const int64_t tiles = fixed_leaves() ? std::ssize(leaves_) * largest_leaf_loss().tile_count() : loss.tile_count();
  loss_.tile_maxima = kept.allocate(rounds ? rows() * tiles : 0);
  loss_.product_scratch = allocate_product_scratch(scratch);
  allocate_stream_leaves(scratch);
  logits_buffer_ = scratch.allocate(options_.decode_positions > 0 ? shape_.vocabulary : 0);
  allocate_head_over_tensor(scratch);
}

/// The shape of the loss of the leaf with the most entries.
LossShape Transformer::largest_leaf_loss() const {
  LossShape leaf = loss_shape(largest_);
  leaf.entries = (shape_.vocabulary + kTensorLeaves - 1) / kTensorLeaves;
  return leaf;
}

int64_t Transformer::product_scratch_elements() const {
  return backend_.product_scratch_elements(options_.compute, options_.gradient_type);
}

void Transformer::allocate_row_sum_scratch(ActivationArena& scratch) {
  if (!trains_base()) return;
  const int64_t elements = backend_.row_sum_scratch_elements(rows(), shape_.width);
  layer_scratch_ = {scratch.allocate(elements), elements};
}

float* Transformer::allocate_product_scratch(ActivationArena& scratch) const {
  return scratch.allocate(product_scratch_elements());
}

void Transformer::check_ids(std::span<const int32_t> ids, const std::string& what, int32_t least) const {
  if (static_cast<int64_t>(ids.size()) != rows()) {
    throw UsageError("a micro-batch has " + std::to_string(ids.size()) + " " + what + "s: expected " +
                     std::to_string(rows()) + " (batch x sequence).");
  }
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < least || id >= shape_.vocabulary; });
  if (bad == ids.end()) return;
  throw UsageError(what + " " + std::to_string(bad - ids.begin()) + " of a micro-batch is " + std::to_string(*bad) +
                   ", but the vocabulary has " + std::to_string(shape_.vocabulary) +
                   " entries: use a larger --vocab, or data tokenized for this model.");
}

void Transformer::begin_batch(const TokenBatch& batch) {
  decoding_.reset();
  set_extents(batch_, sequence_);
  check_ids(batch.tokens, "token", 0);
  check_ids(batch.targets, "target", kIgnoredTarget);
}

void Transformer::set_batch(const TokenBatch& batch) {
  begin_batch(batch);
  staged_tokens_ = backend_.stage_tokens(batch);
}

void Transformer::stage_batch(int slot, const TokenBatch& batch) {
  begin_batch(batch);
  backend_.stage_batch(slot, batch);
}

void Transformer::set_decoding(const DecodingPass& pass) {
  const auto count = static_cast<int64_t>(pass.tokens.size());
  if (count < 1 || count > sequence_) {
    throw UsageError("a decoding pass has " + std::to_string(count) + " tokens: expected 1 to " +
                     std::to_string(sequence_) + ".");
  }
  const int64_t most =
      pass.cache == nullptr ? options_.decode_positions : std::min(options_.decode_positions, pass.cache->capacity());
  if (pass.end_position() > most) {
    throw UsageError("a decoded sequence has " + std::to_string(pass.end_position()) + " tokens: expected at most " +
                     std::to_string(most) + ".");
  }
  set_extents(1, count);
  check_ids(pass.tokens, "token", 0);
  decoding_ = pass;
  staged_tokens_ = backend_.stage_tokens({pass.tokens, pass.tokens});  // no layer reads the targets
}

ModelTensor Transformer::tensor(std::string name, std::vector<int64_t> shape, const Initializer& initial,
                                Values& parameter, Values& gradient, const TensorDeclaration& over_tensor) const {
  parameter = {nullptr, options_.compute};
  gradient = {nullptr, options_.gradient_type};
  return {.name = std::move(name),
          .shape = std::move(shape),
          .initial = initial,
          .parameter = &parameter,
          .gradient = &gradient,
          .trainable = trains_base(),
          .over_tensor = over_tensor};
}

ModelTensor Transformer::table(std::vector<int64_t> shape, const Initializer& initial, Values& parameter,
                               Values& gradient) const {
  const TensorDeclarations over_tensor(shape_, options_.tensor);
  ModelTensor table = tensor("weight", std::move(shape), initial, parameter, gradient, over_tensor.table);
  table.is_table = true;
  return table;
}

AttentionShape Transformer::attention_shape(const TensorPart& part) const {
  return {options_.batch, options_.sequence, part.heads, shape_.head_width(), part.kv_heads, window_};
}

/// Decoding reads the keys of up to decode_positions positions.
AttentionShape Transformer::attention_scratch_shape() const {
  AttentionShape shape = largest_attention_shape();
  shape.sequence = std::max(sequence_, options_.decode_positions);
  return shape;
}

LossShape Transformer::loss_shape(const TensorPart& part) const {
  // In 16 bits, rows begin at multiples of 128 bytes.
  const int64_t aligned = (part.entries + 63) / 64 * 64;
  const LogitTiles tiles = backend_.logit_tiles(options_.compute);
  return {.rows = rows(),
          .width = shape_.width,
          .entries = part.entries,
          .keep_logits = options_.keep_logits,
          .first_entry = part.first_entry,
          .logit_stride = options_.compute == DType::kFloat32 ? part.entries : aligned,
          .tile = tiles.entries,
          .row_multiple = tiles.row_multiple};
}

EmbeddingRows Transformer::embedding() const {
  return {staged_tokens_.tokens, rows(), shape_.width, own_.entries, own_.first_entry, layer_scratch_};
}

Linear Transformer::linear(ConstValues weight, ConstValues bias, int64_t inputs, int64_t outputs) const {
  return {.weight = weight,
          .bias = bias,
          .rows = rows(),
          .inputs = inputs,
          .outputs = outputs,
          .scratch = product_scratch_};
}

void Transformer::norm_forward(const Norm& norm, Values to) {
  backend_.layer_norm_forward({.x = norm.x,
                               .weight = norm.weight,
                               .bias = norm.bias,
                               .mean = norm.mean,
                               .rstd = norm.rstd,
                               .to = to,
                               .rows = own_.rows,
                               .width = shape_.width,
                               .epsilon = static_cast<float>(shape_.norm_epsilon)});
}

void Transformer::norm_backward(const Norm& norm, const float* from, Values d_weight, Values d_bias, bool add) {
  if (in_weights_part() && fixed_leaves()) {
    sum_norm_weights(norm, from);
  } else if (in_weights_part() && d_weight.data != nullptr) {
    backend_.layer_norm_backward_weights({.x = norm.x,
                                          .mean = norm.mean,
                                          .rstd = norm.rstd,
                                          .from = from,
                                          .weight = d_weight,
                                          .bias = d_bias,
                                          .rows = own_.rows,
                                          .width = shape_.width,
                                          .add = adds(),
                                          .scratch = layer_scratch_});
  }
  if (!in_input_part()) return;
  backend_.layer_norm_backward(
      {norm.x, norm.weight, norm.mean, norm.rstd, from, gradient_, own_.rows, shape_.width, add});
}

void Transformer::save_norms(const Norm& norm_1, const Norm& norm_2) {
  const auto save = [&](Values to, ConstValues from) {
    if (to.data != nullptr) backend_.convert(to, from, shape_.width);
  };
  save(block_data_.norm_1_weight, norm_1.weight);
  save(block_data_.norm_1_bias, norm_1.bias);
  save(block_data_.norm_2_weight, norm_2.weight);
  save(block_data_.norm_2_bias, norm_2.bias);
}

void Transformer::attend(ConstValues qkv, Values to, float* log_sums) {
  const AttentionShape s = attention_shape();
  AttentionForward attention{s, qkv, to, log_sums, attention_scratch_};
  if (decoding_ && decoding_->cache != nullptr) {
    const KeyValueCache& cache = *decoding_->cache;
    const int64_t first = first_position();
    const Values rows = cache.rows(layer_);
    for (int64_t row = 0; row < s.sequence; ++row) {
      backend_.convert(rows.from((first + row) * cache.row_elements()), qkv.from(row * s.stride() + s.width()),
                       cache.row_elements());
    }
    attention.cached = {rows, first};
  }
  backend_.attention_forward(attention);
}

void Transformer::compute_logits(ConstValues table) {
  Linear head = linear(table, nullptr, shape_.width, own_.entries);
  head.rows = 1;
  head.outputs_first = true;
  head.scratch = loss_.product_scratch;
  backend_.linear_forward(head, normed_input().from((rows() - 1) * shape_.width), nullptr, logits_buffer_);
  logits_.resize(static_cast<size_t>(own_.entries));
  backend_.read(logits_buffer_, logits_);
}

}  // namespace aliquot
