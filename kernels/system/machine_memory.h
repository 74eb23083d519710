#pragma once
// How much memory this machine has, and has left.

#include <cstdint>

namespace aliquot {

/// What this machine's memory allows all processes, or the control group that this process is in, where that is less. The
/// largest number where the system does not tell.
int64_t machine_memory_bytes();

/// What of it could still be handed out, swap included, as the system says itself: a page beyond it is somebody's death
/// long after it was granted. The largest number where the system does not tell.
int64_t available_memory_bytes();

class Device;
/// What of a GPU's memory is taken, by all processes, as its driver says; 0 for a host. Throws as the device's other calls.
int64_t used_gpu_bytes(Device& device);

}  // namespace aliquot
