#pragma once
// Launches kernels. For *.cu files. Only this file uses the <<<...>>> syntax, so that tests that simulate a GPU can
// replace this file.

#include <type_traits>

#include "kernels/device/enqueue_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

namespace {
/// Registers the module of the *.cu file that includes this header.
__global__ void kernel_of_this_module() {}
[[maybe_unused]] const bool module_is_registered =
    register_kernel_module(reinterpret_cast<const void*>(&kernel_of_this_module));
}  // namespace

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

/// Returns the dynamic shared memory of the block, aligned to 16 bytes. Grid::shared_bytes is its size.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ uint4 shared_words[];
  return reinterpret_cast<T*>(shared_words);
}

}  // namespace aliquot
#pragma GCC visibility pop
