#pragma once
// Matrix products on a GPU, by cuBLASLt.

#include <cstdint>
#include <memory>

#include "kernels/device/device.h"
#include "kernels/gemm/product.h"

namespace aliquot {

/// One rank's products on one GPU. What is found out of a shape stays known, so that it is computed in the same way each time:
/// the same bits from run to run on the same GPU and cuBLASLt. Sums are fp32, never TF32. Used from one thread.
class CudaProducts {
 public:
  /// Each product has kGpuProductScratchBytes of `scratch`, wherever it lies. Throws UnavailableError where cuBLASLt does not start.
  CudaProducts();
  ~CudaProducts();
  CudaProducts(const CudaProducts&) = delete;
  CudaProducts& operator=(const CudaProducts&) = delete;

  /// Enqueues it; operands are of one type. Throws UnavailableError where cuBLASLt has no such product.
  void multiply(Stream& stream, const Product& product) { multiply(stream, product, nullptr); }
  /// And adds `bias`, of the result's type, to each row before it is rounded; what is there is not added to then. Only where
  /// adds_bias().
  void multiply(Stream& stream, const Product& product, ConstValues bias);
  /// Whether cuBLASLt has such a product that adds a bias as it goes.
  bool adds_bias(const Product& product, ConstValues bias);

 private:
  struct Plan;
  struct PlanCache;
  const Plan* plan_of(const Product& product, ConstValues bias);
  std::unique_ptr<PlanCache> plan_cache_;
};

}  // namespace aliquot
