#pragma once
// Launches kernels, and stores words in global memory. For *.cu files. Only this file uses the <<<...>>> syntax and
// these instructions, so that tests that simulate a GPU can replace this file.

#include <cstdint>
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

/// Stores a word in global memory with one instruction. The address must be aligned to the size of the word.
__device__ inline void store_word(uint32_t* at, uint32_t word) {
  asm("st.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(word) : "memory");
}
__device__ inline void store_word(uint2* at, uint2 word) {
  asm("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "r"(word.x), "r"(word.y) : "memory");
}
__device__ inline void store_word(uint4* at, uint4 word) {
  asm("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(word.x), "r"(word.y),
      "r"(word.z), "r"(word.w)
      : "memory");
}

}  // namespace aliquot
#pragma GCC visibility pop
