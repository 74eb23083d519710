#pragma once
// Replaces kernels/device/start_kernel_cuda.h for *.cu files that are compiled as C++. Runs kernels on a simulated GPU.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "kernels/device/device_cuda.h"
#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_cuda_grid.h"

namespace aliquot {

struct Grid {
  unsigned blocks = 1, threads = 1;
  unsigned shared_bytes = 0;
};

template <class... Parameters>
void start_kernel(Stream& stream, const char* name, const Grid& grid, void (*kernel)(Parameters...),
                  const std::type_identity_t<Parameters>&... arguments) {
  // The lambda copies the arguments now, as a CUDA launch does.
  simulated::launch(cuda_stream(stream), [=] {
    simulated::run_grid({name, grid.blocks, grid.threads, grid.shared_bytes}, [&] { kernel(arguments...); });
  });
}

/// Aborts if the address is not aligned, because a GPU would fail too.
template <class Word>
void store_word(Word* at, Word word) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Word) != 0) {
    std::fprintf(stderr, "a store of %zu bytes is not aligned\n", sizeof(Word));
    std::abort();
  }
  *at = word;
}

template <class T>
T* shared_memory() {
  return static_cast<T*>(simulated::shared_memory());
}

}  // namespace aliquot
