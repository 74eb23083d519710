#include "apps/stop_request.h"

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <thread>
#include <unistd.h>

#include "sharding/flight_recorder.h"

namespace aliquot {
namespace {

std::atomic<int> requested{0};

sigset_t signals(bool with_terminal) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) {
    if (signal != SIGINT || with_terminal) sigaddset(&set, signal);
  }
  return set;
}

/// A launcher ends its ranks so when one of them died: there is no time to save, but to say where this one was.
[[noreturn]] void end_by_launcher() {
  write_flights("told to end by the launcher (SIGTERM): another rank died, or somebody stopped the job");
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), SIGTERM);
  _exit(exit_code_of_signal(SIGTERM));
}

void take_signals(sigset_t set, bool launched) {
  for (int signal = 0; sigwait(&set, &signal) == 0;) {
    if (launched && signal == SIGTERM) end_by_launcher();
    if (requested.exchange(signal) != 0) _exit(exit_code_of_signal(signal));
  }
}

}  // namespace

// A thread of their own takes the signals, and all others have them blocked. A handler would run on the stack of whoever
// computes, and oneDNN's matrix products keep values below the stack pointer: what returned to them was another's memory.
void listen_for_stop(bool launched) {
  const sigset_t set = signals(!launched);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(take_signals, set, launched).detach();
}

int stop_signal() noexcept { return requested; }

void unblock_stop_signals() noexcept {
  const sigset_t set = signals(true);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace aliquot
