#pragma once
// The scratch memory of matrix products on a GPU. Plans need its size on machines without a GPU too.

#include <cstdint>

namespace aliquot {

/// The workspace of cuBLASLt, and after it a converted bias. NVIDIA recommends a workspace of 32 MiB for Hopper GPUs.
inline constexpr int64_t kGpuProductScratchBytes = int64_t{32} << 20;
inline constexpr int64_t kGpuProductVectorBytes = int64_t{1} << 20;
inline constexpr int64_t kGpuProductWorkspaceBytes = kGpuProductScratchBytes - kGpuProductVectorBytes;

/// The elements of cuda::Fp8Quantization::partial_maxima.
inline constexpr int64_t kFp8PartialMaxima = 1024;

}  // namespace aliquot
