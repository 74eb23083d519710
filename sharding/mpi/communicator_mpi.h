#pragma once
// The communicator for ranks connected by MPI.

#include <memory>

#include "sharding/comm/communicator.h"
#include "sharding/mpi/bootstrap_mpi.h"

namespace aliquot {

/// Determines the topology with MPI. For tests, the environment variable ALIQUOT_RANKS_PER_NODE=k assigns every k
/// consecutive ranks to one node. Collective. Throws UsageError if k is not a positive integer.
Topology find_topology(MpiBootstrap& world);

/// Returns a communicator that uses shared memory inside a node and MPI between nodes. Each byte is sent to a node only
/// once. The bits of results do not depend on the distribution of ranks over nodes. Collective. `device` must be a host
/// device and outlive the communicator. `group`: name of the group, for messages; empty for the world. Between nodes:
/// - the work of a collective starts only after all ranks have arrived, so every collective is also a barrier;
/// - publish() and await() synchronize only the ranks of a node. This suffices for reusing a buffer, because other
///   nodes receive copies, which are sent in stream order.
std::unique_ptr<Communicator> make_mpi_communicator(Device& device, std::unique_ptr<MpiBootstrap> world,
                                                    Topology topology, std::string_view group = {});

}  // namespace aliquot
