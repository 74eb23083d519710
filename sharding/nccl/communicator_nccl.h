#pragma once
// Ranks with a GPU each, over NCCL. Compiled, not yet run on a GPU.

#include <functional>
#include <memory>

#include "sharding/comm/bootstrap.h"
#include "sharding/comm/communicator.h"
#include "sharding/memory/node_memory.h"

namespace aliquot {

struct NcclOptions {
  double timeout_seconds = 600;

  /// Thread blocks that a collective takes from the computation, at least and at most; 0 leaves it to NCCL. Where a sum need
  /// not be in tree order, fp32 comes in the order that NCCL's algorithm and channels give. It is the same from run to run
  /// when those are pinned: the count here, and NCCL_ALGO, NCCL_PROTO (say Ring and Simple) and NCCL_NVLS_ENABLE=0 in the
  /// environment of every rank before it starts, since NCCL reads them once a process.
  int channel_count = 0;

  /// Gathers by the GPU's copy engines, which leave every multiprocessor to the computation: inside one NVLink domain and
  /// where memory could be registered as symmetric. NCCL decides case by case.
  bool copy_engine_gathers = false;

  /// Where parts that are added here arrive, in GPU memory, taken at the first such sum: larger parts go in pieces.
  int64_t scratch_bytes = int64_t{64} << 20;
};

/// What a communicator over NCCL is made of.
struct NcclSetup {
  std::unique_ptr<Bootstrap> bootstrap;  // carries NCCL's id, objects and aborts; threads or MPI
  Topology topology;
  /// Optional: memory that the ranks of one node share. A group on one node then meets on a board before anything is given
  /// to NCCL, so that a missing or differing rank is named before any GPU waits for it.
  std::function<std::unique_ptr<NodeMemory>(Bootstrap&)> make_node_memory{};
  NcclOptions options;
};

/// One NCCL communicator for the bootstrap's ranks. Buffers are registered with NCCL where it agrees (as symmetric windows,
/// else plainly, else not at all). publish() and await() order this rank's own lanes alone: no peer reads this rank's
/// memory but through a collective that this rank takes part in, in its own stream's order.
///   Ranks make their calls in one order over all lanes. A collective that does not end, on the host or on the GPU, is
/// aborted at the deadline; that is noticed in the next call, and in synchronize() of every stream of the device.
/// Collective and blocking. `device` must outlive it and be a GPU that no other rank of the group uses: UnavailableError.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, NcclSetup setup);

}  // namespace aliquot
