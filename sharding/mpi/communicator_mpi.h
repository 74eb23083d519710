#pragma once
// The communicator of ranks that MPI connects.

#include <memory>

#include "sharding/comm/communicator.h"
#include "sharding/mpi/bootstrap_mpi.h"

namespace aliquot {

/// Where the ranks run, found by MPI, or, with the environment variable ALIQUOT_RANKS_PER_NODE=k, every k ranks said to
/// be a node, for tests. Collective. Throws UsageError for a k below 1.
Topology find_topology(MpiBootstrap& world);

/// Ranks of one node use its shared memory alone; ranks of several use it inside a node and MPI between nodes, each byte
/// crossing once. The same bits either way. Collective; the bootstrap is taken over; `device`, a host, must outlive it.
/// Inside a node all is as with direct communicators. Between nodes:
/// - a collective's work starts when all ranks have come to it, so it is a barrier too;
/// - memory is read by the own node's ranks alone; what other nodes need of it is sent, in the stream's order. publish()
///   and await() are therefore within a node: that is all it takes to use a buffer again.
std::unique_ptr<Communicator> make_mpi_communicator(Device& device, std::unique_ptr<MpiBootstrap> world,
                                                    Topology topology);

}  // namespace aliquot
