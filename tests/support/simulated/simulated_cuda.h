#pragma once
// The simulated CUDA runtime. It runs the host code of GPU ranks on machines without a GPU, also under sanitizers.
// Streams are threads with random delays, events and graphs are supported, and GPU memory is host memory. Tests link it
// before the real runtime. aliquot_use_simulated_gpus() sets the number of GPUs.
//
// Errors that a real GPU would hide end the program: a stream that is destroyed before its work has run, and memory
// that is freed while a copy that uses it, or any work of the calling thread's streams, has not run.

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>

namespace aliquot::simulated {

/// Enqueues `work` on the stream in place of a kernel. `work` may wait for other streams.
void launch(cudaStream_t stream, std::function<void()> work);

/// The same for work that must be prepared again for each launch of a graph. `prepare` is called when the work is
/// enqueued, on the thread that enqueues it, and returns the work.
void launch_prepared(cudaStream_t stream, std::function<std::function<void()>()> prepare);

/// Sets the longest random delay of work in streams. By default it is 200 microseconds.
void set_longest_delay(int microseconds);

/// Sets the compute capability of the GPUs. By default it is 9.0.
void set_compute_capability(int major, int minor);

/// Returns how many graphs were launched.
int64_t launched_graphs();

/// Returns how many events and streams were made, and how often memory was allocated.
int64_t made_resources();

/// Returns how many kernels were loaded by cuFuncLoad(). Each registered module has kKernelsPerModule of them.
int64_t loaded_kernels();
constexpr int kKernelsPerModule = 3;

/// Simulates a fault of a kernel: queries and waits for the stream fail, and the stream runs no more host functions.
void fault(cudaStream_t stream);

}  // namespace aliquot::simulated
