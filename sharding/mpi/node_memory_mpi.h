#pragma once
// Node memory for ranks connected by MPI.

#include <memory>

#include "sharding/memory/node_memory.h"
#include "sharding/mpi/bootstrap_mpi.h"

namespace aliquot {

/// Returns memory that uses a memfd, or MPI-3 shared windows if a rank cannot open the memfd. The environment variable
/// ALIQUOT_NODE_MEMORY, with the value memfd or window, requires one kind. Collective. `bootstrap` must outlive the
/// result. Throws UnavailableError if the required kind is not available, UsageError for another value, and
/// std::bad_cast if `bootstrap` is not an MpiBootstrap.
std::unique_ptr<NodeMemory> make_process_node_memory(Bootstrap& bootstrap);

/// Returns memory that uses MPI-3 shared windows. Ranks may destroy its mappings at any time. A later map() of window
/// memory frees a window if all ranks of the window participate in the call.
std::unique_ptr<NodeMemory> make_window_node_memory(MpiBootstrap& bootstrap);

}  // namespace aliquot
