#pragma once
// What the linear layers of a block need to compute with fp8 operands on a GPU.

#include <cstdint>

namespace aliquot {

/// The most layers of a block that read the same input: the projections to queries, keys and values.
inline constexpr int64_t kMaxLayersOfInput = 3;
/// The elements of Fp8Scratch::factors: of the input, of the other operand, and of each gradient.
inline constexpr int64_t kFp8FactorCount = 2 + kMaxLayersOfInput;

/// The scratch memory of the fp8 operands of a block. All pointers are in GPU memory.
struct Fp8Scratch {
  uint32_t* partial_maxima = nullptr;
  float* factors = nullptr;      // convert operands back
  uint8_t* input = nullptr;      // of the layer
  uint8_t* operand = nullptr;    // the weight, or in the product of the weight's gradient the gradient of the output
  uint8_t* gradients = nullptr;  // of the outputs of all layers that read the same input
};

/// The layers before this one with the same input have filled `layers_before` places of Fp8Scratch::gradients with
/// `outputs_before` columns.
struct Fp8Linear {
  const Fp8Scratch* scratch = nullptr;  // null: the operands must not be fp8
  int64_t layers_before = 0, outputs_before = 0;
  /// The previous call of the same function was for a layer with the same input, whose fp8 copy is then used again.
  bool reuses_input = false;
  /// linear_backward_weights() and linear_backward_input() of this layer get the same gradient. It does not change
  /// between the two calls, so that its fp8 copy is used again.
  bool shares_gradient = false;
};

}  // namespace aliquot
