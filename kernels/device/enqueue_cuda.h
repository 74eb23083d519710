#pragma once
// Functions for code that enqueues CUDA work on Aliquot's streams: *.cu files and the CUDA backend.

#include <cuda_runtime_api.h>
#include <string_view>

#include "kernels/device/stream.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Throws if `result` is an error. Throws UnavailableError if the driver, the GPU or GPU memory is not available, or if
/// this build has no code for the GPU. Throws FaultError for all other errors. The message begins with `action`, such
/// as "making an event".
void check(cudaError_t result, std::string_view action);

/// Call it after each kernel launch. Throws like check() if the launch failed.
void check_launch(std::string_view kernel);

/// Adds the module of `kernel` to the modules whose kernels are loaded when a GPU device is made. A module has all
/// kernels of one *.cu file. Each file that includes start_kernel_cuda.h calls this function while the program or its
/// library is loaded. Returns true.
bool register_kernel_module(const void* kernel);

/// Returns the cudaStream_t of `stream`, and makes its GPU current for the calling thread, so that it can launch
/// kernels. Throws std::logic_error for a host stream.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace aliquot
#pragma GCC visibility pop
