#pragma once
// Another program, run to its end.

#include <string>
#include <sys/types.h>
#include <vector>

namespace aliquot {

/// How a program ended: by itself with `code`, or by a signal.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: none
};

/// A running program; its output and errors go to a file, it reads nothing. It is asked to stop when we are gone. Used from
/// one thread.
class ChildProcess {
 public:
  /// `words`: the program's path and its arguments. Throws FaultError when it cannot be started.
  ChildProcess(const std::vector<std::string>& words, const std::string& output_path);
  /// Kills it, if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Waits for `seconds` at most; true once it has ended.
  bool wait_for_exit(double seconds);
  ExitStatus exit_status() const { return exit_status_; }
  /// Nothing once it has ended.
  void send(int signal) const;

 private:
  bool poll_exit();
  pid_t process_ = 0;
  bool ended_ = false;
  ExitStatus exit_status_;
};

}  // namespace aliquot
