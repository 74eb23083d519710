#pragma once
// The communicator of ranks that can load one another's memory.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/signals.h"
#include "sharding/memory/node_memory.h"
#include "sharding/memory/peer_memory.h"

namespace aliquot {

/// What makes threads of one process differ from processes of one node, or a host from a GPU. Anything it makes may
/// refer to what it is given, which outlives it.
struct DirectTransport {
  std::string name;  // "threads", "mpi"
  std::function<std::unique_ptr<NodeMemory>(Bootstrap&)> make_node_memory;
  std::function<std::unique_ptr<Signals>(Bootstrap&, NodeMemory&, const SignalsOptions&)> make_signals;
  std::function<std::unique_ptr<PeerMemory>(Bootstrap&, NodeMemory&, Device&)> make_peer_memory;
  double timeout_seconds = 600;
};

/// Parts for a host device: signals on a shared board, buffers in the node's memory. `name` and `make_node_memory` remain
/// to be set.
DirectTransport host_direct_transport(double timeout_seconds);

/// Parts for thread-ranks on GPUs, one shared or several of one node: buffers in GPU memory that the peers' kernels read.
/// Complete. Throws UnavailableError in a build without CUDA.
DirectTransport cuda_direct_transport(double timeout_seconds);

/// Gathers copy from the peers' memory, reductions read it and write their own part: no byte is moved twice. Collective
/// over `bootstrap`, which is taken over. `device` must outlive it.
std::unique_ptr<Communicator> make_direct_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                       Topology topology, const DirectTransport& transport);

}  // namespace aliquot
