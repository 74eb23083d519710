#include "apps/train/stop_request.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string>
#include <thread>
#include <unistd.h>

#include "kernels/system/start_thread.h"
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

std::string reason_of_launcher() {
  return std::string(kEndedByLauncher) + " (SIGTERM): another rank died, or the job was stopped";
}

/// Under mpirun, SIGTERM usually means that another rank died. The remaining time is too short to save a checkpoint.
/// mpirun 4.1 sends SIGKILL a few milliseconds later. But it sends SIGCONT one second earlier, and then the records are
/// written already.
[[noreturn]] void exit_by_launcher(bool recorded) {
  if (!recorded) write_flight_records(reason_of_launcher());
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  std::signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), SIGTERM);
  _exit(exit_code_of_signal(SIGTERM));
}

/// Whether the process ends at once if it receives this signal again. SIGUSR1 and SIGUSR2 never end it: a supervisor
/// may forward a signal that the ranks have also received directly.
bool ends_if_repeated(int signal) { return signal == SIGTERM || signal == SIGINT; }

/// The loop of the thread that receives the signals.
void receive_signals(sigset_t set, StartedBy by) {
  constexpr timespec kRecordDelay{.tv_sec = 20, .tv_nsec = 0}, kTermDelay{.tv_sec = 3, .tv_nsec = 0};
  for (bool record_is_due = false, ends_next = false, recorded = false;;) {
    siginfo_t info{};
    const bool waits_briefly = record_is_due || recorded;
    const int signal =
        waits_briefly ? sigtimedwait(&set, &info, recorded ? &kTermDelay : &kRecordDelay) : sigwaitinfo(&set, &info);
    if (signal < 0 && errno != EAGAIN) continue;
    if (signal < 0 && recorded) {  // mpirun only continues the job
      discard_provisional_flight_records();
      recorded = false;
      continue;
    }
    if (signal == SIGCONT) {
      if (info.si_pid != getppid()) continue;
      write_provisional_flight_records(reason_of_launcher());
      recorded = true;
      continue;
    }
    if (signal < 0) {
      write_flight_records(std::string(kEndedByLauncher) + " (SIGTERM) 20 s ago, and its step has not finished");
      record_is_due = false;
      continue;
    }
    if (by == StartedBy::kMpirun && signal == SIGTERM) exit_by_launcher(recorded);
    if (ends_next && ends_if_repeated(signal)) _exit(exit_code_of_signal(signal));
    ends_next = ends_next || ends_if_repeated(signal);
    int none = 0;
    requested.compare_exchange_strong(none, signal);
    record_is_due = record_is_due || (by == StartedBy::kSrun && signal == SIGTERM);
  }
}

}  // namespace

void hold_user_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// A dedicated thread receives the signals; all others block them. A handler would run on the stack of a computing
// thread, and generated code may keep values below the stack pointer (oneDNN 2.6 does).
void install_stop_handlers(StartedBy by) {
  sigset_t set = signals(by != StartedBy::kMpirun);
  if (by == StartedBy::kMpirun) sigaddset(&set, SIGCONT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // Ctrl-C also ends a `tee` that reads the output, and the run must still save
  start_thread("signals", [set, by] { receive_signals(set, by); }).detach();
}

int stop_signal() noexcept { return requested; }

void unblock_stop_signals() noexcept {
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t set = signals(true);
  sigaddset(&set, SIGCONT);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace aliquot
