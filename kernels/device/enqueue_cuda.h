#pragma once
// Functions for code that enqueues CUDA work on Aliquot's streams: *.cu files and the CUDA backend.

#include <cuda_runtime_api.h>
#include <string_view>

#include "kernels/device/stream.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Throws if `result` is an error: UnavailableError if the machine lacks a driver, a GPU, memory or code for its GPU,
/// and FaultError otherwise. `action` begins the message, such as "making an event".
void check(cudaError_t result, std::string_view action);

/// Call it after each kernel launch. Throws like check() if the launch failed.
void check_launch(std::string_view kernel);

/// Returns the cudaStream_t of `stream`, and makes its GPU current for the calling thread, so that it can launch
/// kernels. Throws std::logic_error for a host stream.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace aliquot
#pragma GCC visibility pop
