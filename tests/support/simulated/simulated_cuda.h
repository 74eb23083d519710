#pragma once
// A CUDA runtime that only pretends, so that the host side of GPU ranks runs, is tested and is sanitized where there is no
// GPU: streams are threads that dawdle at random, events are real, GPU memory is host memory. Linked before the real one. The
// test program says how many GPUs there are (aliquot_use_simulated_gpus).

#include <cuda_runtime_api.h>
#include <functional>

namespace aliquot::simulated {

/// What a kernel would be: runs in the stream's order, and may wait for other streams.
void launch(cudaStream_t stream, std::function<void()> work);

/// As after a kernel's fault: the stream says so when asked or waited for, and starts no more host work.
void fault(cudaStream_t stream);

}  // namespace aliquot::simulated
