#include "apps/models/cuda/fp8_linears_cuda.h"

#include "apps/models/layers/linear_products.h"

namespace aliquot {
namespace {

using cuda::Fp8Quantization;

/// The indices of Fp8Scratch::factors.
enum FactorIndex : int64_t { kInputFactor, kOperandFactor, kFirstGradientFactor };

Fp8Quantization quantization(const Linear& l, ConstValues from, int64_t rows, int64_t columns, int64_t stride) {
  const bool is_bf16 = from.type == DType::kBFloat16;
  return {.from = is_bf16 ? static_cast<const uint16_t*>(from.data) : nullptr,
          .rows = rows,
          .columns = columns,
          .stride = stride,
          .partial_maxima = l.fp8.scratch->partial_maxima};
}

Fp8Quantization input_of(const Linear& l, ConstValues x) {
  Fp8Quantization input = quantization(l, x, l.rows, l.inputs, input_stride(l));
  input.inverse_scale = l.fp8.scratch->factors + kInputFactor;
  return input;
}

Fp8Quantization weight_of(const Linear& l) {
  const int64_t rows = l.outputs_first ? l.outputs : l.inputs, columns = l.outputs_first ? l.inputs : l.outputs;
  Fp8Quantization weight = quantization(l, l.weight, rows, columns, weight_stride(l));
  weight.inverse_scale = l.fp8.scratch->factors + kOperandFactor;
  return weight;
}

Fp8Quantization gradient_of(const Linear& l, ConstValues from) {
  Fp8Quantization gradient = quantization(l, from, l.rows, l.outputs, output_stride(l));
  gradient.format = Fp8Format::kE5M2;
  gradient.inverse_scale = l.fp8.scratch->factors + kFirstGradientFactor + l.fp8.layers_before;
  return gradient;
}

/// The place of this layer in Fp8Scratch::gradients.
uint8_t* gradient_place(const Linear& l) { return l.fp8.scratch->gradients + l.rows * l.fp8.outputs_before; }

/// A copy in fp8 with contiguous depth.
struct Operand {
  const uint8_t* data;
  const Fp8Quantization& copied;
};

GpuProduct with_operands(const Product& p, const Operand& a, const Operand& b) {
  GpuProduct product(p, {a.copied.format, b.copied.format, a.copied.inverse_scale, b.copied.inverse_scale});
  product.a = {{a.data, DType::kUInt8}, p.depth, false};
  product.b = {{b.data, DType::kUInt8}, p.depth, true};
  return product;
}

}  // namespace

bool Fp8Linears::supports(const Fp8Quantization& one, const Fp8Quantization& other, const GpuProduct& product) {
  const bool are_bf16 = one.from != nullptr && other.from != nullptr;
  return are_bf16 && can_quantize_fp8(one) && can_quantize_fp8(other) && products_.supports(product, {});
}

void Fp8Linears::quantize_input(Stream& stream, const Linear& l, const Fp8Quantization& input) {
  const InputCopy wanted{input.from, input.transposed != nullptr};
  if (l.fp8.reuses_input && input_ == wanted) return;
  quantize_fp8(stream, input);
  input_ = wanted;
}

GpuProduct Fp8Linears::forward(Stream& stream, const Linear& l, ConstValues x, const Product& p) {
  if (l.fp8.scratch == nullptr) return p;
  const Fp8Scratch& scratch = *l.fp8.scratch;
  if (!l.fp8.reuses_input) input_ = {};
  Fp8Quantization input = input_of(l, x), weight = weight_of(l);
  input.to = scratch.input;
  (l.outputs_first ? weight.to : weight.transposed) = scratch.operand;
  const GpuProduct product = with_operands(p, {scratch.input, input}, {scratch.operand, weight});
  if (!supports(input, weight, product)) return p;
  quantize_input(stream, l, input);
  quantize_fp8(stream, weight);
  return product;
}

GpuProduct Fp8Linears::backward_input(Stream& stream, const Linear& l, ConstValues from, const Product& p) {
  if (l.fp8.scratch == nullptr) return p;
  Fp8Quantization gradient = gradient_of(l, from), weight = weight_of(l);
  gradient.to = gradient_place(l);
  (l.outputs_first ? weight.transposed : weight.to) = l.fp8.scratch->operand;
  const GpuProduct product = with_operands(p, {gradient.to, gradient}, {l.fp8.scratch->operand, weight});
  if (!supports(gradient, weight, product)) return p;
  const void* existing = gradients_[static_cast<size_t>(l.fp8.layers_before)];
  if (!l.fp8.shares_gradient || existing != from.data) quantize_fp8(stream, gradient);
  quantize_fp8(stream, weight);
  return product;
}

GpuProduct Fp8Linears::backward_weights(Stream& stream, const Linear& l, ConstValues x, ConstValues from,
                                        const Product& p) {
  if (l.fp8.scratch == nullptr) return p;
  const Fp8Scratch& scratch = *l.fp8.scratch;
  if (!l.fp8.reuses_input) input_ = {};
  const void*& kept = gradients_[static_cast<size_t>(l.fp8.layers_before)];
  kept = nullptr;
  Fp8Quantization input = input_of(l, x), gradient = gradient_of(l, from);
  input.transposed = scratch.input;
  gradient.transposed = scratch.operand;
  if (l.fp8.shares_gradient) gradient.to = gradient_place(l);
  const Operand inputs{scratch.input, input}, outputs{scratch.operand, gradient};
  const GpuProduct product = l.outputs_first ? with_operands(p, outputs, inputs) : with_operands(p, inputs, outputs);
  if (!supports(input, gradient, product)) return p;
  quantize_input(stream, l, input);
  quantize_fp8(stream, gradient);
  if (l.fp8.shares_gradient) kept = from.data;
  return product;
}

}  // namespace aliquot
