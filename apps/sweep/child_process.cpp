#include "apps/sweep/child_process.h"

#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "apps/train/stop_request.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int kCannotRun = 127;
constexpr auto kPollInterval = std::chrono::milliseconds(10);

// Runs in the child between fork and exec. May only call functions that take no locks and allocate no memory.
[[noreturn]] void exec_program(char* const* words, int output, int dev_null, pid_t parent) {
  unblock_stop_signals();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotRun);  // the parent ended before prctl(), so no SIGTERM will arrive
  dup2(dev_null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(words[0], words);
  const char* why = std::strerror(errno);
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, why, std::strlen(why));
  _exit(kCannotRun);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& output_path) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  const int output = open(output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (output < 0) throw FaultError(output_path + ": the file cannot be written: " + std::strerror(errno) + ".");
  const int dev_null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) exec_program(pointers.data(), output, dev_null, parent);
  const int fork_error = errno;
  close(output);
  if (dev_null >= 0) close(dev_null);
  if (process_ < 0) throw FaultError(words[0] + ": the program cannot be started: " + std::strerror(fork_error) + ".");
}

ChildProcess::~ChildProcess() {
  if (ended_) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

bool ChildProcess::poll_exit() {
  int status = 0;
  if (waitpid(process_, &status, WNOHANG) != process_) return false;
  ended_ = true;
  if (WIFEXITED(status)) exit_status_.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) exit_status_.signal = WTERMSIG(status);
  return true;
}

bool ChildProcess::wait_for_exit(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!ended_ && !poll_exit() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPollInterval);
  return ended_;
}

void ChildProcess::send(int signal) const {
  if (!ended_) kill(process_, signal);
}

}  // namespace aliquot
