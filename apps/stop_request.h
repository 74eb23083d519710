#pragma once
// Being asked to stop, by signal.

namespace aliquot {

/// From now on SIGUSR1 and SIGUSR2, and SIGTERM and SIGINT unless `launched` (mpirun kills its ranks soon after them), ask
/// for a stop; a second one ends the process at once.
void listen_for_stop(bool launched);
/// True once somebody asked this process. The ranks agree among themselves.
bool stop_requested() noexcept;

}  // namespace aliquot
