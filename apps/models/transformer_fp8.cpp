// The fp8 operands of the linear layers of blocks: see Fp8Linear.
#include <algorithm>

#include "apps/models/transformer.h"
#include "kernels/gemm/product_scratch.h"

namespace aliquot {

/// Allocates memory for the largest layers. A rank of a tensor group may have smaller ones.
void Transformer::allocate_fp8_scratch(ActivationArena& scratch) {
  if (!backend_.has_fp8_products()) return;
  const AttentionShape attention = largest_attention_shape();
  const int64_t width = shape_.width, heads = attention.width(), qkv = attention.stride(), hidden = largest_.hidden;
  const bool is_packed = shape_.family == ModelFamily::kGpt2;  // one layer computes queries, keys and values
  const int64_t from_norm = is_packed ? qkv : heads;           // the most outputs of one layer of attention
  const int64_t most_outputs = std::max({from_norm, width, hidden});
  const int64_t largest_weight = width * std::max(from_norm, hidden);
  const int64_t outputs_of_input = std::max({qkv, width, is_packed ? hidden : 2 * hidden});
  const auto bytes = [&](int64_t count) { return static_cast<uint8_t*>(scratch.allocate(count, DType::kUInt8).data); };
  fp8_.partial_maxima = reinterpret_cast<uint32_t*>(scratch.allocate(kFp8PartialMaxima));
  fp8_.factors = scratch.allocate(kFp8FactorCount);
  fp8_.input = bytes(rows() * std::max({width, heads, hidden}));
  fp8_.operand = bytes(std::max(largest_weight, rows() * most_outputs));
  fp8_.gradients = bytes(rows() * outputs_of_input);
}

Linear Transformer::block_linear(ConstValues weight, ConstValues bias, int64_t inputs, int64_t outputs) const {
  Linear l = linear(weight, bias, inputs, outputs);
  if (backend_.has_fp8_products()) l.fp8.scratch = &fp8_;
  return l;
}

Linear Transformer::with_fp8_for_weights(const BlockLinear& l, bool is_computed) {
  Linear linear = l.linear;
  linear.fp8.reuses_input = linear.fp8.layers_before > 0 && has_fp8_input_;
  linear.fp8.shares_gradient = is_computed && part_ == BackwardPart::kWhole && !fixed_leaves();
  has_fp8_input_ = is_computed || linear.fp8.reuses_input;
  shares_fp8_gradient_[static_cast<size_t>(l.projection)] = linear.fp8.shares_gradient;
  return linear;
}

Linear Transformer::with_fp8_for_input(const BlockLinear& l) const {
  Linear linear = l.linear;
  linear.fp8.shares_gradient = shares_fp8_gradient_[static_cast<size_t>(l.projection)];
  return linear;
}

}  // namespace aliquot
