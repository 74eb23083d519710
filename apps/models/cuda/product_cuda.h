#pragma once
// Matrix products on a GPU, computed by cuBLASLt.

#include <cstdint>
#include <memory>

#include "kernels/device/device.h"
#include "kernels/gemm/product.h"

namespace aliquot {

/// The matrix products of one rank on one GPU. Caches the algorithm for each shape. Results have the same bits in every
/// run with the same GPU and version of cuBLASLt. Sums are fp32, never TF32. Call all functions from one thread.
class CudaProducts {
 public:
  /// Product::scratch of every product must have kGpuProductScratchBytes bytes. Throws UnavailableError if cuBLASLt
  /// cannot be initialized.
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Enqueues a product whose operands have one type. Throws UnavailableError if cuBLASLt does not support it.
  void multiply(Stream& stream, const Product& product) { multiply(stream, product, nullptr); }
  /// Like multiply() without a bias, but adds `bias` to each row before rounding. Requires that adds_bias() returns
  /// true and that product.add is false.
  void multiply(Stream& stream, const Product& product, ConstValues bias);
  /// Whether `bias` has the type of the result and cuBLASLt supports this product with a bias epilogue.
  bool adds_bias(const Product& product, ConstValues bias);

 private:
  struct Plan;
  struct PlanCache;
  const Plan* plan_of(const Product& product, ConstValues bias);
  std::unique_ptr<PlanCache> plan_cache_;
};

}  // namespace aliquot
