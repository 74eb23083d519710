#pragma once
// How a kernel is started: the one place with CUDA's own syntax for it, so that tests can put a simulated GPU in its stead.
// For *.cu files.

#include <type_traits>

#include "kernels/device/enqueue_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

struct Grid {
  unsigned blocks = 1, threads = 1;
  unsigned shared_bytes = 0;  // of a block, beside what the kernel declares itself
};

/// Enqueues the kernel on the stream; `name` is what the error says. Throws as check() does if it is refused.
template <class... Parameters>
void start_kernel(Stream& stream, const char* name, const Grid& grid, void (*kernel)(Parameters...),
                  const std::type_identity_t<Parameters>&... arguments) {
  constexpr unsigned kDefaultSharedBytesLimit = 48 * 1024;
  const cudaStream_t queue = cuda_stream(stream);
  if (grid.shared_bytes > kDefaultSharedBytesLimit) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          name);
  }
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, queue>>>(arguments...);
  check_launch(name);
}

/// Where a block's shared_bytes lie, aligned to 16 bytes.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<T*>(shared_words);
}

}  // namespace aliquot
#pragma GCC visibility pop
