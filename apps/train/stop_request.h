#pragma once
// Being asked to stop, by signal.

#include <array>
#include <csignal>

#include "sharding/launcher.h"

namespace aliquot {

/// What asks for a stop; the last ones weigh most.
inline constexpr std::array kStopSignals{SIGUSR1, SIGUSR2, SIGTERM, SIGINT};

/// From now on SIGUSR1 and SIGUSR2, and SIGTERM and SIGINT unless mpirun started it, ask for a stop; a second SIGTERM or
/// SIGINT ends the process at once. The ranks' records of their last collectives are written at SIGTERM by mpirun, and
/// the process ends; by srun, where the process has not ended 20 s after it. No thread made after this is ever interrupted by
/// them. Once, from the main thread, before there are others.
void install_stop_handlers(StartedBy by);
/// The signal by which somebody asked this process; 0: nobody did. The ranks agree among themselves.
int stop_signal() noexcept;
inline bool stop_requested() noexcept { return stop_signal() != 0; }

/// For a process between fork and exec: what it becomes listens, or not, for itself.
void unblock_stop_signals() noexcept;

/// What shells make of an end by that signal: for a stop that left nothing to go on from.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace aliquot
