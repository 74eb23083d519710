#pragma once
// The communicator that uses NCCL, for ranks with one GPU each.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/communicator.h"
#include "sharding/memory/node_memory.h"
#include "sharding/nccl/nccl_options.h"

namespace aliquot {

/// The arguments of make_nccl_communicator().
struct NcclSetup {
  std::unique_ptr<Bootstrap> bootstrap;  // exchanges the NCCL id, objects and aborts
  Topology topology;
  /// Optional. Creates memory that the ranks of a node share. Groups on one node then use a board to compare
  /// collectives before they issue them to NCCL. So missing ranks, and ranks with different collectives, are reported
  /// before a GPU waits for them.
  std::function<std::unique_ptr<NodeMemory>(Bootstrap&)> make_node_memory{};
  NcclOptions options = {};
  double timeout_seconds = 600;
  std::string group = {};  // name of the group, for messages; empty: the world
};

/// Returns a communicator that uses one NCCL communicator for the ranks of the bootstrap. Buffers are registered with
/// NCCL as symmetric windows if possible, which requires equal sizes on all ranks, otherwise as plain buffers. If
/// neither is possible, they are not registered.
/// publish() and await() synchronize only the lanes of this rank, because its peers never read its memory directly.
///
/// Ranks must make their calls in the same order over all lanes. A collective that does not complete before the
/// deadline is aborted; the next call, or synchronize() of any stream of the device, then throws.
///
/// Collective; blocks. `device` must be a GPU and outlive the communicator. Throws UnavailableError if another rank of
/// the group uses the same GPU.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, NcclSetup setup);

}  // namespace aliquot
