#pragma once
// Asynchronous copies from global to shared memory (PTX cp.async). Use it in *.cu files only. Tests replace it with a
// simulation.

#include <cstdint>

namespace aliquot::cuda {

/// Starts to copy kBytes, 4 or 16, to shared memory. Both addresses are multiples of kBytes. If the source does not
/// exist, the copy does not read it and sets the destination to zero. The calling thread can read the destination after
/// wait_for_copies(), and other threads of the block after a later barrier.
template <int kBytes>
__device__ inline void start_copy(void* to_shared, const void* from, bool source_exists) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const auto source = __cvta_generic_to_global(from);
  const int source_bytes = source_exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(source), "r"(source_bytes)
                 : "memory");
  } else {
    static_assert(kBytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(source), "r"(source_bytes) : "memory");
  }
}

/// Waits until all copies that the calling thread started have ended.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace aliquot::cuda
