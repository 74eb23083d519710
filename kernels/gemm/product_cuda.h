#pragma once
// Matrix products on a GPU, computed by cuBLASLt.

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/gemm/product.h"
#include "kernels/gemm/product_scratch.h"

namespace aliquot {

class CudaDevice;

/// How a GPU multiplies fp32 operands. kTf32 rounds them to 10 bits after the point and uses tensor cores. Sums are
/// fp32 in both cases.
enum class Fp32Products : uint8_t { kExact, kTf32 };

/// The properties of all products of a rank.
struct ProductSettings {
  Fp32Products fp32 = Fp32Products::kExact;
  std::string choices_file = {};  // see CudaProducts; empty: none
  bool measures = true;           // whether to measure products that the file lacks
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
  /// The bytes at Product::scratch. If they are not the default, the bias must have the type of the result.
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
  void multiply(Stream& stream, const Product& product, const ProductEpilogue& epilogue = {});
  /// Whether cuBLASLt supports this product with this epilogue. The answer depends on types, extents, strides,
  /// alignments and the size of the scratch memory.
  bool supports(const Product& product, const ProductEpilogue& epilogue);

 private:
  class Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace aliquot
