#pragma once
// Node memory for ranks that MPI connects.

#include <memory>

#include "sharding/memory/node_memory.h"
#include "sharding/mpi/bootstrap_mpi.h"

namespace aliquot {

/// A memfd, or an MPI-3 shared window where any rank is refused that. The environment variable ALIQUOT_NODE_MEMORY
/// (memfd, window) asks for one of them. Collective; the bootstrap must outlive it. Throws UnavailableError if what was
/// asked for is not to be had, UsageError for another word, std::bad_cast for a bootstrap that is not an MpiBootstrap.
std::unique_ptr<NodeMemory> make_process_node_memory(Bootstrap& bootstrap);

/// The window alone. Its mappings may be destroyed by each rank when it likes; the windows themselves are given back
/// when all ranks are known to have done so, in a later map() of any window memory that all of them take part in.
std::unique_ptr<NodeMemory> make_window_node_memory(MpiBootstrap& bootstrap);

}  // namespace aliquot
