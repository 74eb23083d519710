#include "apps/stop_request.h"

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <thread>
#include <unistd.h>

namespace aliquot {
namespace {

std::atomic<int> requested{0};

sigset_t signals(bool with_terminal) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  if (!with_terminal) return set;
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&set, signal);
  return set;
}

void take_signals(sigset_t set) {
  for (int signal = 0; sigwait(&set, &signal) == 0;) {
    if (requested.exchange(signal) != 0) _exit(exit_code_of_signal(signal));
  }
}

}  // namespace

// A thread of their own takes the signals, and all others have them blocked. A handler would run on the stack of whoever
// computes, and oneDNN's matrix products keep values below the stack pointer: what returned to them was another's memory.
void listen_for_stop(bool launched) {
  const sigset_t set = signals(!launched);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(take_signals, set).detach();
}

int stop_signal() noexcept { return requested; }

void unblock_stop_signals() noexcept {
  const sigset_t set = signals(true);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace aliquot
