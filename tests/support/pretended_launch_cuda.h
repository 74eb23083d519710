#pragma once
// A program of one .cu file, as C++ for a CUDA that pretends: what nvcc gives a kernel, and its launch, one thread of the grid
// after the other in the stream's order. For kernels whose threads do not wait for one another.

#include <cuda_runtime.h>
#include <type_traits>

#include "tests/support/pretended_cuda.h"

#undef __global__
#undef __device__
#define __global__
#define __device__

inline thread_local dim3 blockIdx, threadIdx;

namespace aliquot::pretended {

/// What `kernel<<<blocks, threads, 0, stream>>>` is made into: to be called with the kernel's arguments.
template <typename... Arguments>
auto grid(void (*kernel)(Arguments...), int blocks, int threads, int, cudaStream_t stream) {
  return [=](std::type_identity_t<Arguments>... arguments) {
    launch(stream, [=] {
      for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(blocks); ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < static_cast<unsigned>(threads); ++threadIdx.x) kernel(arguments...);
      }
    });
  };
}

}  // namespace aliquot::pretended
