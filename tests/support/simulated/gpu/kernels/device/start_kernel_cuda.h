#pragma once
// Replaces kernels/device/start_kernel_cuda.h for *.cu files that are compiled as C++. Runs kernels on a simulated GPU.

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

template <class T>
T* shared_memory() {
  return static_cast<T*>(simulated::shared_memory());
}

}  // namespace aliquot
