#pragma once
// Describes the three matrix products of a linear layer, for all backends.

#include "apps/models/layers/layers.h"
#include "kernels/gemm/product.h"

namespace aliquot {

inline int64_t output_stride(const Linear& l) { return l.output_stride == 0 ? l.outputs : l.output_stride; }
inline int64_t input_stride(const Linear& l) { return l.input_stride == 0 ? l.inputs : l.input_stride; }
inline int64_t weight_stride(const Linear& l) {
  const int64_t contiguous = l.outputs_first ? l.inputs : l.outputs;
  return l.weight_stride == 0 ? contiguous : l.weight_stride;
}

/// to = x * weight or, with `add`, to += x * weight.
inline Product forward_product(const Linear& l, ConstValues x, Values to, bool add) {
  return {.a = {x, input_stride(l)},
          .b = {l.weight, weight_stride(l), l.outputs_first},
          .to = to,
          .to_stride = output_stride(l),
          .rows = l.rows,
          .columns = l.outputs,
          .depth = l.inputs,
          .factor = l.factor,
          .add = add,
          .scratch = l.scratch};
}

/// to = from * weight^T or, with `add`, to += from * weight^T.
inline Product input_product(const Linear& l, ConstValues from, Values to, bool add) {
  return {.a = {from, output_stride(l)},
          .b = {l.weight, weight_stride(l), !l.outputs_first},
          .to = to,
          .to_stride = input_stride(l),
          .rows = l.rows,
          .columns = l.inputs,
          .depth = l.outputs,
          .factor = l.factor,
          .add = add,
          .scratch = l.scratch};
}

/// to.weight = x^T * from or, with to.add, to.weight += x^T * from. With outputs_first the product is from^T * x.
inline Product weight_product(const Linear& l, ConstValues x, ConstValues from, const LinearGradients& to) {
  const Matrix inputs{x, input_stride(l)}, outputs{from, output_stride(l)};
  Product product{.a = l.outputs_first ? outputs : inputs,
                  .b = l.outputs_first ? inputs : outputs,
                  .to = to.weight,
                  .to_stride = weight_stride(l),
                  .rows = l.outputs_first ? l.outputs : l.inputs,
                  .columns = l.outputs_first ? l.inputs : l.outputs,
                  .depth = l.rows,
                  .factor = l.factor,
                  .add = to.add,
                  .scratch = l.scratch};
  product.a.transposed = true;
  return product;
}

}  // namespace aliquot
