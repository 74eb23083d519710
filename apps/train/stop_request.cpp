#include "apps/train/stop_request.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string>
#include <thread>
#include <unistd.h>

#include "sharding/flight/flight_recorder.h"

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
[[noreturn]] void exit_by_launcher() {
  write_flight_records(std::string(kEndedByLauncher) + " (SIGTERM): another rank died, or somebody stopped the job");
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), SIGTERM);
  _exit(exit_code_of_signal(SIGTERM));
}

/// SIGUSR1 and SIGUSR2 only ask, however often and before or after another: who supervises a run passes on what its ranks were
/// sent too.
bool insists(int signal) { return signal == SIGTERM || signal == SIGINT; }

void take_signals(sigset_t set, StartedBy by) {
  constexpr timespec kPatience{.tv_sec = 20, .tv_nsec = 0};
  for (bool leaves_record = false, insisted = false;;) {
    const int signal = leaves_record ? sigtimedwait(&set, nullptr, &kPatience) : sigwaitinfo(&set, nullptr);
    if (signal < 0 && errno != EAGAIN) continue;
    if (signal < 0) {
      write_flight_records(std::string(kEndedByLauncher) + " (SIGTERM) 20 s before, and its step is not over");
      leaves_record = false;
      continue;
    }
    if (by == StartedBy::kMpirun && signal == SIGTERM) exit_by_launcher();
    if (insisted && insists(signal)) _exit(exit_code_of_signal(signal));
    insisted = insisted || insists(signal);
    int nobody = 0;
    requested.compare_exchange_strong(nobody, signal);
    leaves_record = leaves_record || (by == StartedBy::kSrun && signal == SIGTERM);
  }
}

}  // namespace

// A thread of its own takes the signals; all others have them blocked. A handler would run on the stack of a thread that
// computes, and a model's generated code may keep values below the stack pointer (oneDNN 2.6 does).
void install_stop_handlers(StartedBy by) {
  const sigset_t set = signals(by != StartedBy::kMpirun);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // Ctrl-C ends the tee that reads us too, and what was asked for is still to be saved
  std::thread(take_signals, set, by).detach();
}

int stop_signal() noexcept { return requested; }

void unblock_stop_signals() noexcept {
  std::signal(SIGPIPE, SIG_DFL);
  const sigset_t set = signals(true);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace aliquot
