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
};

/// What a GPU computes together with a product. Except for `depth_sums`, it changes the fp32 sums of the product before
/// they are rounded, in the order of the fields. Every array is null if it is not used.
struct ProductEpilogue {
  /// kForward stores the sum in `gelu_input` and replaces it by gelu(sum). kBackward multiplies it by
  /// gelu'(gelu_input).
  enum class Gelu : uint8_t { kNone, kForward, kBackward };
  /// The operand whose sums over the depth `depth_sums` receives. They are those of the rows of a, or of the columns of
  /// b.
  enum class Operand : uint8_t { kA, kB };

  ConstValues added = {};  // a matrix with the type and the stride of the result; only if Product::add is false
  float added_factor = 1;  // multiplies `added`
  ConstValues bias = {};   // added to each row
  Gelu gelu = Gelu::kNone;
  Values gelu_input = {};  // a matrix with the type and the stride of the result
  Values depth_sums = {};  // not multiplied by Product::factor; has the type of the result
  Operand summed = Operand::kB;
  bool adds_depth_sums = false;  // depth_sums += the sums; only if they are fp32
  /// The bytes at Product::scratch. If it is not the default, the product must not need a vector: no depth_sums, and no
  /// bias of another type than the result.
  int64_t scratch_bytes = kGpuProductScratchBytes;
};

/// The matrix products of one rank on one GPU. Plans each kind of product once. Results have the same bits in every run
/// with the same GPU, version of cuBLASLt, settings and choices. Call all functions from one thread.
class CudaProducts {
 public:
  /// Without a file of choices, each product has the first of cuBLASLt's candidates. With a file, products have the
  /// candidates in the file (see ProductChoices). For products that it lacks, measures up to eight candidates and adds
  /// the fastest to the file. Products that add to their result in place, and captured products, are not measured.
  /// Throws UnavailableError if cuBLASLt cannot be initialized. The device must outlive the products.
  explicit CudaProducts(CudaDevice& device, const ProductSettings& settings = {});
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Enqueues a product whose operands have one type. Product::scratch must have scratch_bytes bytes. Throws
  /// UnavailableError if cuBLASLt does not support it.
  void multiply(Stream& stream, const Product& product, const ProductEpilogue& epilogue = {});
  /// Whether cuBLASLt supports this product with this epilogue. The answer depends on types, sizes, strides and
  /// alignments.
  bool supports(const Product& product, const ProductEpilogue& epilogue);

 private:
  class Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace aliquot
