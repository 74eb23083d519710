#pragma once
// The communicator for ranks that can read each other's memory directly.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/signals.h"
#include "sharding/memory/node_memory.h"
#include "sharding/memory/peer_memory.h"

namespace aliquot {

/// The parts of a DirectCommunicator that differ between threads and processes, and between hosts and GPUs. The objects
/// that these functions return may refer to the functions' arguments, which outlive the objects.
struct DirectTransport {
  std::string name;  // "threads" or "mpi"
  std::function<std::unique_ptr<NodeMemory>(Bootstrap&)> make_node_memory;
  std::function<std::unique_ptr<Signals>(Bootstrap&, NodeMemory&, Device&, const SignalsOptions&)> make_signals;
  std::function<std::unique_ptr<PeerMemory>(Bootstrap&, NodeMemory&, Device&)> make_peer_memory;
  double timeout_seconds = 600;
  std::string group = {};  // name of the group, for messages; empty: the world
};

/// Returns the transport for host devices, with signals on a shared board and buffers in the node's memory. The caller
/// must set `name` and `make_node_memory`.
DirectTransport host_direct_transport(double timeout_seconds);

/// Returns the transport for ranks that are threads and use the GPUs of one node. Several ranks may use one GPU.
/// Kernels of other ranks read the buffers in GPU memory. Throws UnavailableError in a build without CUDA.
DirectTransport cuda_direct_transport(double timeout_seconds);

/// Creates the communicator. Gathers copy from the peers' memory. Reductions read the peers' memory and write the
/// rank's own part, without an intermediate copy. Collective over `bootstrap`. `device` must outlive the communicator.
/// Ranks that are threads may share one `topology`.
std::unique_ptr<Communicator> make_direct_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                       std::shared_ptr<const Topology> topology,
                                                       const DirectTransport& transport);
inline std::unique_ptr<Communicator> make_direct_communicator(Device& device, std::unique_ptr<Bootstrap> bootstrap,
                                                              Topology topology, const DirectTransport& transport) {
  return make_direct_communicator(device, std::move(bootstrap), std::make_shared<const Topology>(std::move(topology)),
                                  transport);
}

}  // namespace aliquot
