#pragma once
// Launches kernels on the simulated CUDA runtime, for a program of one .cu file that is compiled as C++.

#include <type_traits>

#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_cuda_grid.h"

namespace aliquot::simulated {

/// Replaces `kernel<<<blocks, threads, shared_bytes, stream>>>`. Call the result with the arguments of the kernel.
template <typename... Arguments>
auto grid(void (*kernel)(Arguments...), unsigned blocks, unsigned threads, unsigned shared_bytes, cudaStream_t stream) {
  return [=](std::type_identity_t<Arguments>... arguments) {
    launch(stream, [=] { run_grid({"", blocks, threads, shared_bytes}, [&] { kernel(arguments...); }); });
  };
}

}  // namespace aliquot::simulated
