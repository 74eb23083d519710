#pragma once
// GPU memory of ranks that are threads of one process: on one GPU, or on GPUs of one node that reach each other.

#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/memory/peer_memory.h"

namespace aliquot {

/// Every rank's buffers lie on its own GPU, and the peers' kernels read them there. Where all ranks share one GPU, a shared
/// range is one allocation seen by all; on several GPUs there is none. Memory is aligned to kBufferAlignmentBytes.
/// Collective over `bootstrap`, blocks; throws UnavailableError, on all ranks, if a GPU cannot read another's memory.
/// `device` and `bootstrap` must outlive it and its buffers.
std::unique_ptr<PeerMemory> make_cuda_peer_memory(Device& device, Bootstrap& bootstrap);

}  // namespace aliquot
