#pragma once
// Runs another program.

#include <string>
#include <sys/types.h>
#include <vector>

namespace aliquot {

/// How a program ended: with an exit code, or by a signal.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: no signal ended the program
};

/// A child process with an empty standard input. A file receives its standard output and standard error. The child
/// receives SIGTERM if this process ends first. Not thread-safe.
class ChildProcess {
 public:
  /// `words` are the path of the program and its arguments. Throws FaultError if the process cannot be created or the
  /// output file cannot be opened. If the program cannot be executed, the process ends with code 127.
  ChildProcess(const std::vector<std::string>& words, const std::string& output_path);
  /// Kills the process if it is still running.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Waits at most `seconds` for the process to end. Returns whether it has ended.
  bool wait_for_exit(double seconds);
  ExitStatus exit_status() const { return exit_status_; }
  /// Sends a signal. Does nothing if the process has ended.
  void send(int signal) const;

 private:
  bool poll_exit();
  pid_t process_ = 0;
  bool ended_ = false;
  ExitStatus exit_status_;
};

}  // namespace aliquot
