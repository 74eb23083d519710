#pragma once
// GPU memory for ranks that are threads of one process. The ranks use one GPU, or several GPUs with peer access.

#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/memory/peer_memory.h"

namespace aliquot {

/// Allocates each rank's buffers on its own GPU, where the peers' kernels read them. Shared ranges exist only if all
/// ranks share one GPU. Memory is aligned to kBufferAlignmentBytes. Collective over `bootstrap`; blocks. Throws
/// UnavailableError on all ranks if one GPU cannot read the memory of another. `device` and `bootstrap` must outlive
/// the result and its buffers.
std::unique_ptr<PeerMemory> make_cuda_peer_memory(Device& device, Bootstrap& bootstrap);

}  // namespace aliquot
