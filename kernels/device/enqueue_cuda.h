#pragma once
// What code needs to enqueue CUDA work on one of Aliquot's streams. For *.cu files and the CUDA backend.

#include <cuda_runtime_api.h>
#include <string_view>

#include "kernels/device/stream.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Does nothing on success. Throws UnavailableError for what this machine lacks (a driver, a GPU, memory, code for its GPU)
/// and FaultError for everything else. The message names `what` was tried and quotes CUDA's error.
void check(cudaError_t result, std::string_view what);

/// After a kernel launch: throws as check() does if the launch was refused.
void check_launch(std::string_view kernel);

/// The stream as CUDA's own. Makes its device the calling thread's current one, so that a kernel may be launched. Throws
/// std::logic_error for a stream of another kind of device.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace aliquot
#pragma GCC visibility pop
