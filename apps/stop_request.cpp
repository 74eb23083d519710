#include "apps/stop_request.h"

#include <csignal>
#include <initializer_list>
#include <unistd.h>

namespace aliquot {
namespace {

volatile std::sig_atomic_t requested = 0;

extern "C" void request_stop(int signal) {
  if (requested != 0) _exit(exit_code_of_signal(signal));
  requested = signal;
}

}  // namespace

void listen_for_stop(bool launched) {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGUSR2}) sigaction(signal, &action, nullptr);
  if (launched) return;
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

int stop_signal() noexcept { return requested; }

}  // namespace aliquot
