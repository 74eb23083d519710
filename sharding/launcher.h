#pragma once
// The launcher of this process, and how much time a rank has to exit.

#include <cstdint>

namespace aliquot {

/// mpirun kills its ranks two seconds after it forwards SIGTERM or SIGINT. srun waits 30 seconds: enough to save if all
/// ranks are alive, but not enough to wait for the timeout of a failed rank.
enum class StartedBy : uint8_t { kItself, kMpirun, kSrun };

/// Determines the launcher from environment variables. Also returns kItself if a launcher started only this process.
StartedBy started_by();

/// The rank of this process according to the launcher, known before MPI is initialized. 0 without a launcher.
int launched_rank() noexcept;

/// The number of this process. While MPI runs and connects several processes, it is the rank in MPI_COMM_WORLD.
/// Otherwise it is launched_rank(), which is 0 in every process if the launcher sets no environment variable.
int process_number() noexcept;

/// The number of processes of the launcher on this node, or 0 if it is unknown.
int launched_count_on_node() noexcept;

/// Limits the time for which this process waits at its exit until all ranks of the launcher exit. By default, it waits
/// without a limit, because a program may continue on one rank after training. No effect without MPI.
void limit_wait_at_exit(double seconds) noexcept;

}  // namespace aliquot
