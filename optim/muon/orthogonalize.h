#pragma once
// Making a matrix orthogonal, on a device.

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/system/thread_pool.h"
#include "optim/muon/muon.h"

namespace aliquot {

/// One matrix, row-major and without padding, in memory of the device, and where to work: orthogonalize_scratch_bytes() of
/// it, aligned to 64 bytes.
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

struct MatrixKernels {
  /// Enqueues: the matrix is replaced by U S' V^T with S' near 1 (by the quintic iteration of Newton and Schulz, 3.4445,
  /// -4.7750, 2.0315, from the matrix divided by its Frobenius norm or eps), times what Muon::rate says. Every sum in fp32 in
  /// one order: the same bits for any number of threads, any instruction set, and on GPUs. A matrix of zeros stays one.
  void (*orthogonalize)(Stream&, const OrthogonalizeArgs&);
};

/// Throws UnavailableError in a build without CUDA.
const MatrixKernels& matrix_kernels(DeviceKind kind);

/// The same at once, on the caller and the pool.
void orthogonalize_on_host(const OrthogonalizeArgs& args, ThreadPool& pool);

/// For matrix_kernels(), from the CUDA sources.
const MatrixKernels& cuda_matrix_kernels();

}  // namespace aliquot
