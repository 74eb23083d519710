#pragma once
// Matrix products on a GPU, computed by cuBLASLt.

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/formats/float8.h"
#include "kernels/gemm/operand_rounding.h"
#include "kernels/gemm/product.h"
#include "kernels/gemm/product_scratch.h"

namespace aliquot {

class CudaDevice;

/// The properties of all products of a rank.
struct ProductSettings {
  OperandRounding rounding = OperandRounding::kNone;  // kFp8 has no effect here: callers quantize operands
  std::string choices_file = {};                      // see CudaProducts; empty: none
  bool measures = true;                               // whether to measure products that the file lacks
};

/// The formats of operands in fp8, and the factors in GPU memory that multiply them.
struct Fp8Operands {
  Fp8Format a = Fp8Format::kE4M3, b = Fp8Format::kE4M3;
  const float *a_factor = nullptr, *b_factor = nullptr;  // null: the operands are not fp8

  bool exist() const { return a_factor != nullptr; }
};

/// A product whose operands may be fp8. The type of such operands in Product is DType::kUInt8. Then the depth must be
/// contiguous in both operands (b is transposed), all extents must be multiples of 16, the alignments at least 16
/// bytes, the result fp32 or bf16, and not both operands E5M2.
struct GpuProduct : Product {
  GpuProduct(const Product& product, const Fp8Operands& operands = {})  // NOLINT(google-explicit-constructor)
      : Product(product), fp8(operands) {}

  Fp8Operands fp8;
};

/// What a GPU computes together with a product. It changes the fp32 sums of the product before they are rounded, in the
/// order of the fields. Every array is null if it is not used. cuBLASLt can also sum the gradients of biases. This is
/// not used, because its order of addition depends on the extents of the whole product, and ranks of a tensor group
/// must get the same bits for a bias that they all have.
struct ProductEpilogue {
  /// kForward stores the sum in `gelu_input` and replaces it by gelu(sum). kBackward multiplies it by
  /// gelu'(gelu_input).
  enum class Gelu : uint8_t { kNone, kForward, kBackward };

  ConstValues added = {};  // a matrix with the type and the stride of the result; only if Product::add is false
  float added_factor = 1;  // multiplies `added`
  ConstValues bias = {};   // added to each row
  Gelu gelu = Gelu::kNone;
  Values gelu_input = {};  // a matrix with the type and the stride of the result
  /// The bytes at Product::scratch. If they are not the default, the bias must have the type that cuBLASLt needs: that
  /// of the result or, with fp8 operands, bf16.
  int64_t scratch_bytes = kGpuProductScratchBytes;
};

/// The matrix products of one rank on one GPU. Plans each kind of product once. Results have the same bits in every run
/// with the same GPU, version of cuBLASLt, settings and choices, if it measures no products. Call all functions from
/// one thread.
class CudaProducts {
 public:
  /// Without a file of choices, each product has the first of cuBLASLt's candidates. With a file, products have the
  /// candidates in the file (see ProductChoices). For products that it lacks, measures up to eight candidates and adds
  /// the fastest to the file. It is not measured while a product only adds to its result in place, nor in a capture.
  /// Throws UnavailableError if cuBLASLt cannot be initialized, and UsageError if the file cannot be used. The device
  /// must outlive the products.
  explicit CudaProducts(CudaDevice& device, const ProductSettings& settings = {});
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Enqueues a product whose operands have one type. Product::scratch must have scratch_bytes bytes. Throws
  /// UnavailableError if cuBLASLt does not support it.
  void multiply(Stream& stream, const GpuProduct& product, const ProductEpilogue& epilogue = {});
  /// Whether cuBLASLt supports this product with this epilogue. The answer depends on types, extents, strides,
  /// alignments and the size of the scratch memory.
  bool supports(const GpuProduct& product, const ProductEpilogue& epilogue);

 private:
  class Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace aliquot
