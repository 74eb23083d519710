#pragma once
// The simulated CUDA runtime. With it the host side of GPU ranks runs, also under sanitizers, on machines without a
// GPU. Streams are threads with random delays, events work, and GPU memory is host memory. It is linked before the real
// runtime. aliquot_use_simulated_gpus() sets the number of GPUs.

#include <cuda_runtime_api.h>
#include <functional>

namespace aliquot::simulated {

/// Runs `work` in place of a kernel: in the order of the stream. It may wait for other streams.
void launch(cudaStream_t stream, std::function<void()> work);

/// Simulates a fault of a kernel: queries and waits of the stream return an error, and it runs no more host functions.
void fault(cudaStream_t stream);

}  // namespace aliquot::simulated
