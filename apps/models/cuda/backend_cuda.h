#pragma once
// The backend of the reference models for GPUs.

#include <memory>

#include "apps/models/backend.h"
#include "kernels/gemm/product_cuda.h"

namespace aliquot {

/// The backend of one rank on `device`, which must outlive it. The backend must outlive the graphs that capture its
/// work. Call compute_on() before the first layer. Throws UnavailableError if this build has no CUDA support or the
/// machine lacks a library that it needs.
std::unique_ptr<Backend> make_cuda_backend(Device& device, const ProductSettings& products = {},
                                           AttentionKernels attention = AttentionKernels::kOwn);

}  // namespace aliquot
