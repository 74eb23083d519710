#pragma once
// A program of one .cu file, as C++ for a CUDA that pretends: its launches, in the stream's order.

#include <type_traits>

#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_cuda_grid.h"

namespace aliquot::simulated {

/// What `kernel<<<blocks, threads, shared_bytes, stream>>>` is made into: to be called with the kernel's arguments.
template <typename... Arguments>
auto grid(void (*kernel)(Arguments...), unsigned blocks, unsigned threads, unsigned shared_bytes, cudaStream_t stream) {
  return [=](std::type_identity_t<Arguments>... arguments) {
    launch(stream, [=] { run_grid({"", blocks, threads, shared_bytes}, [&] { kernel(arguments...); }); });
  };
}

}  // namespace aliquot::simulated
