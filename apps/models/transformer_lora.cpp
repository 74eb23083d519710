// The linear layers of blocks, with the adapters of LoRA.
//
// An adapter computes h = factor * A x and adds B h to the output y of its layer. Backward needs h and its gradient
// factor * B^T dy, which have `rank` elements per row. A block saves h for backward. The input part of a split backward
// saves the gradient of h, so that the weights part reads no parameters.
#include "apps/models/adapters.h"
#include "apps/models/transformer.h"

namespace aliquot {

void Transformer::declare_adapters(ModelUnit& unit, int64_t layer) {
  for (const AdapterMatrix& matrix : adapter_matrices(shape_, options_.tensor)) {
    const auto member = matrix.is_b ? &Adapter::b : &Adapter::a;
    const auto of = [&](std::vector<BlockAdapters>& blocks) -> Values& {
      return blocks[static_cast<size_t>(layer)][static_cast<size_t>(matrix.projection)].*member;
    };
    ModelTensor& added = unit.tensors.emplace_back(
        tensor(matrix.name, matrix.shape, matrix.initial, of(adapters_), of(adapter_gradients_), matrix.over_tensor));
    added.trainable = true;
  }
}

void Transformer::allocate_adapters(UseArenas& memory) {
  const int64_t elements = rows() * shape_.lora.rank;
  for (const ProjectionNames& names : projections_of(shape_.family)) {
    if (!shape_.lora.adapts(names.projection)) continue;
    InnerValues& inner = inner_[static_cast<size_t>(names.projection)];
    inner.values = memory.kept.allocate(elements, options_.compute);
    const Values saved = memory.weight_inputs.allocate(elements, options_.compute);
    const Values in_scratch = memory.scratch.allocate(elements, options_.compute);
    inner.gradient = memory_.weight_inputs != nullptr ? saved : in_scratch;
  }
}

Transformer::Adapter Transformer::adapter(const BlockLinear& l, const std::vector<BlockAdapters>& of) const {
  Adapter adapter = of[static_cast<size_t>(layer_)][static_cast<size_t>(l.projection)];
  adapter.b = adapter.b.from(l.first_output * shape_.lora.rank);
  return adapter;
}

Linear Transformer::inner_linear(const BlockLinear& l) const {
  Linear inner = linear(adapter(l, adapters_).a, nullptr, l.linear.inputs, shape_.lora.rank);
  inner.outputs_first = true;
  return inner;
}

Linear Transformer::outer_linear(const BlockLinear& l) const {
  Linear outer = linear(adapter(l, adapters_).b, nullptr, shape_.lora.rank, l.linear.outputs);
  outer.outputs_first = true;
  outer.output_stride = l.linear.output_stride;
  return outer;
}

void Transformer::inner_forward(const BlockLinear& l, ConstValues x) {
  Linear inner = inner_linear(l);
  inner.factor = shape_.lora.factor();
  backend_.linear_forward(inner, x, nullptr, inner_[static_cast<size_t>(l.projection)].values);
}

void Transformer::adapter_forward(const BlockLinear& l, ConstValues x, Values to) {
  if (!shape_.lora.adapts(l.projection)) return;
  inner_forward(l, x);
  backend_.linear_forward_add(outer_linear(l), inner_[static_cast<size_t>(l.projection)].values, to);
}

void Transformer::linear_forward(const BlockLinear& l, ConstValues x, Values to) {
  Linear linear = l.linear;
  linear.fp8.reuses_input = linear.fp8.layers_before > 0;
  backend_.linear_forward(linear, x, nullptr, to);
  adapter_forward(l, x, to);
}

void Transformer::linear_gelu_forward(const BlockLinear& l, ConstValues x, Values before_gelu, Values to,
                                      bool needs_gelu) {
  if (!shape_.lora.adapts(l.projection)) return backend_.linear_gelu_forward(l.linear, x, before_gelu, to, needs_gelu);
  linear_forward(l, x, before_gelu);
  if (needs_gelu) backend_.gelu_forward(to, before_gelu, l.linear.rows * l.linear.outputs);
}

void Transformer::linear_backward_weights(const BlockLinear& l, ConstValues x, ConstValues from, Values d_weight,
                                          Values d_bias) {
  const bool is_computed = in_weights_part() && d_weight.data != nullptr;
  const Linear linear = with_fp8_for_weights(l, is_computed);
  if (is_computed) backend_.linear_backward_weights(linear, x, from, {d_weight, d_bias, adds()});
  if (!shape_.lora.adapts(l.projection)) return;
  const InnerValues& inner = inner_[static_cast<size_t>(l.projection)];
  if (in_input_part()) {
    Linear outer = outer_linear(l);
    outer.factor = shape_.lora.factor();
    backend_.linear_backward_input(outer, from, inner.gradient);
  }
  if (!in_weights_part()) return;
  const Adapter gradients = adapter(l, adapter_gradients_);
  backend_.linear_backward_weights(outer_linear(l), inner.values, from, {gradients.b, nullptr, adds()});
  backend_.linear_backward_weights(inner_linear(l), x, inner.gradient, {gradients.a, nullptr, adds()});
}

void Transformer::linear_backward_input(const BlockLinear& l, ConstValues from, Values to, bool add) {
  if (!in_input_part()) return;
  backend_.linear_backward_input(with_fp8_for_input(l), from, to, add);
  if (shape_.lora.adapts(l.projection))
    backend_.linear_backward_input(inner_linear(l), inner_[static_cast<size_t>(l.projection)].gradient, to, true);
}

void Transformer::linear_gelu_backward_input(const BlockLinear& l, ConstValues from, ConstValues before_gelu,
                                             Values to) {
  if (!in_input_part()) return;
  if (!shape_.lora.adapts(l.projection))
    return backend_.linear_gelu_backward_input(with_fp8_for_input(l), from, before_gelu, to);
  linear_backward_input(l, from, to);
  backend_.gelu_backward(to, before_gelu, l.linear.rows * l.linear.inputs);
}

}  // namespace aliquot
