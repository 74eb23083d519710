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

/// The memory of a GPU, as the driver reports it.
struct GpuMemoryUse {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;  // by all processes
  /// What was used when this device was made: CUDA contexts with their kernels, and other programs.
  int64_t start_bytes = 0;
  int64_t nccl_bytes = 0;  // by which the use grew while this device's NCCL communicators were made
};
/// Returns zeros for a host device. Throws like check() of kernels/device/enqueue_cuda.h.
GpuMemoryUse gpu_memory_use(Device& device);

}  // namespace aliquot
