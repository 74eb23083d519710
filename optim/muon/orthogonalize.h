#pragma once
// Orthogonalizes a matrix on a device.

#include <memory>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/system/thread_pool.h"
#include "optim/muon/muon.h"

namespace aliquot {

/// One matrix, row-major and without padding, and orthogonalize_scratch_bytes() bytes of scratch memory, aligned to 64
/// bytes. Both are in device memory.
struct OrthogonalizeArgs {
  OrthogonalizeArgs(const Muon& muon, float* at, const MatrixShape& of, std::byte* scratch_memory)
      : matrix(at),
        shape(of),
        scratch(scratch_memory),
        iterations(muon.iterations),
        eps(muon.eps),
        rate(muon.rate),
        products(muon.products) {}

  float* matrix;
  MatrixShape shape;
  std::byte* scratch;
  int iterations;
  float eps;
  MuonRate rate;
  DType products;
};

int64_t orthogonalize_scratch_bytes(const MatrixShape& shape);

/// Orthogonalizes matrices on one device, which must outlive it. Used from the rank's own thread.
class Orthogonalizer {
 public:
  Orthogonalizer() = default;
  Orthogonalizer(const Orthogonalizer&) = delete;
  Orthogonalizer& operator=(const Orthogonalizer&) = delete;
  virtual ~Orthogonalizer() = default;

  /// Enqueues work that replaces the matrix U S V^T with U S' V^T, multiplied by the factor of Muon::rate. The
  /// singular values S' are near 1. The work divides the matrix by max(Frobenius norm, eps) and runs the quintic
  /// Newton-Schulz iteration with coefficients 3.4445, -4.7750 and 2.0315. A zero matrix stays zero. Sums are in fp32
  /// and in a fixed order, so any number of threads, any instruction set and GPUs give the same bits. On a GPU,
  /// cuBLASLt computes bf16 products, and adds in another order. Then GPUs of one kind give the same bits.
  virtual void orthogonalize(Stream& stream, const OrthogonalizeArgs& args) = 0;
};

/// `products` is that of all later calls. Throws UnavailableError for a GPU in a build without CUDA, or if cuBLASLt is
/// needed and missing.
std::unique_ptr<Orthogonalizer> make_orthogonalizer(Device& device, DType products);

/// Orthogonalizes the matrix before it returns, on the calling thread and the pool.
void orthogonalize_on_host(const OrthogonalizeArgs& args, ThreadPool& pool);

/// For make_orthogonalizer() only.
std::unique_ptr<Orthogonalizer> make_cuda_orthogonalizer(Device& device, DType products);

}  // namespace aliquot
