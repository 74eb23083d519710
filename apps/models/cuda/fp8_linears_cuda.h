#pragma once
// Quantizes the operands of the linear layers of blocks to fp8.

#include <array>

#include "apps/models/layers/layers.h"
#include "kernels/gemm/fp8_cuda.h"
#include "kernels/gemm/product_cuda.h"

namespace aliquot {

/// The fp8 operands of the linear layers of one rank: E4M3 for inputs and weights, E5M2 for gradients of outputs. Each
/// operand has one scale, which depends only on its values. The products must outlive the object.
class Fp8Linears {
 public:
  explicit Fp8Linears(CudaProducts& products) : products_(products) {}

  // Each function returns `product` with fp8 operands, and enqueues their quantization. It returns `product` itself if
  // Fp8Linear::scratch is null or the operands cannot be fp8.
  GpuProduct forward(Stream& stream, const Linear& l, ConstValues x, const Product& product);
  GpuProduct backward_input(Stream& stream, const Linear& l, ConstValues from, const Product& product);
  GpuProduct backward_weights(Stream& stream, const Linear& l, ConstValues x, ConstValues from, const Product& product);

 private:
  /// What Fp8Scratch::input has.
  struct InputCopy {
    const void* from = nullptr;
    bool is_transposed = false;
    bool operator==(const InputCopy&) const = default;
  };

  bool supports(const cuda::Fp8Quantization& one, const cuda::Fp8Quantization& other, const GpuProduct& product);
  void quantize_input(Stream& stream, const Linear& l, const cuda::Fp8Quantization& input);

  CudaProducts& products_;
  InputCopy input_;
  std::array<const void*, kMaxLayersOfInput> gradients_{};  // what the places of Fp8Scratch::gradients have
};

}  // namespace aliquot
