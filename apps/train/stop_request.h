#pragma once
// Signals that ask the run to stop.

#include <array>
#include <csignal>

#include "sharding/launcher.h"

namespace aliquot {

/// Signals that request a stop. If ranks received different signals, the one that is last in this list takes effect.
inline constexpr std::array kStopSignals{SIGUSR1, SIGUSR2, SIGTERM, SIGINT};

/// Blocks SIGUSR1 and SIGUSR2, which would end the process. install_stop_handlers() then receives them. Call first,
/// from the main thread.
void hold_user_signals();

/// Makes SIGUSR1, SIGUSR2, SIGTERM and SIGINT request a stop. A second SIGTERM or SIGINT ends the process at once.
/// Under mpirun, SIGINT keeps its default action, and SIGTERM ends the process. The flight records are then already
/// written, because mpirun sends SIGCONT first. If no SIGTERM follows SIGCONT within 3 s, they are removed.
/// Under srun, the flight records are written if the process has not ended 20 s after SIGTERM.
/// Threads created afterwards block these signals. Call once, from the main thread, before other threads exist.
void install_stop_handlers(StartedBy by);
/// The first stop signal that this process received; 0 means none. Ranks may differ.
int stop_signal() noexcept;
inline bool stop_requested() noexcept { return stop_signal() != 0; }

/// Unblocks the stop signals and restores the default action of SIGPIPE. For a child process between fork and exec.
void unblock_stop_signals() noexcept;

/// The exit code that shells report for a process ended by `signal`.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace aliquot
