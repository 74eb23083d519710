#pragma once
// Launches a kernel. Only this file uses the <<<...>>> syntax, so that tests can replace it for the simulated GPU. For
// *.cu files.

#include <type_traits>

#include "kernels/device/enqueue_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

struct Grid {
  unsigned blocks = 1, threads = 1;
  unsigned shared_bytes = 0;  // dynamic shared memory of a block
};

/// Enqueues the kernel on the stream. Throws like check() if the launch fails; the message contains `name`.
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

/// The dynamic shared memory of the block (Grid::shared_bytes), aligned to 16 bytes.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<T*>(shared_words);
}

}  // namespace aliquot
#pragma GCC visibility pop
