#pragma once
// The total and the available memory of this machine.

#include <cstdint>
#include <string>

namespace aliquot {

/// Returns the physical memory of the machine or, if smaller, the limit of this process's control group. INT64_MAX if
/// unknown.
int64_t machine_memory_bytes();

/// Returns the available memory, including swap, within the limit of the control group. If processes use more, the
/// kernel kills one of them. INT64_MAX if unknown.
int64_t available_memory_bytes();

class Device;
/// Returns a text that identifies the GPU among all GPUs, also if each process sees only one. Empty for a host device.
std::string gpu_uuid(Device& device);
/// Returns the GPU memory that all processes together use, as the driver reports it. 0 for a host device. Throws like
/// check() of kernels/device/enqueue_cuda.h.
int64_t used_gpu_bytes(Device& device);
/// Returns the memory of the GPU, as the driver reports it. 0 for a host device. Throws like used_gpu_bytes().
int64_t total_gpu_bytes(Device& device);

}  // namespace aliquot
