#pragma once
// Node memory for ranks connected by MPI.

#include <memory>

#include "sharding/memory/node_memory.h"
#include "sharding/mpi/bootstrap_mpi.h"

namespace aliquot {

/// Returns memfd memory, or MPI-3 shared windows if a rank may not open the memfd. The environment variable
/// ALIQUOT_NODE_MEMORY (memfd or window) requires one of them. Collective. `bootstrap` must outlive the result. Throws
/// UnavailableError if the required kind is not available, UsageError for another value, and std::bad_cast if
/// `bootstrap` is not an MpiBootstrap.
std::unique_ptr<NodeMemory> make_process_node_memory(Bootstrap& bootstrap);

/// Returns memory that uses MPI-3 shared windows. Ranks may destroy its mappings at any time. A window is freed by a
/// later map() of window memory in which all ranks of the window take part.
std::unique_ptr<NodeMemory> make_window_node_memory(MpiBootstrap& bootstrap);

}  // namespace aliquot
