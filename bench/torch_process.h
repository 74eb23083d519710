#pragma once
// A PyTorch process that runs its work once per request, so that PyTorch and our code can be measured alternately.

#include <string>
#include <sys/types.h>
#include <vector>

namespace aliquot {

/// A process that runs a Python script. The script prints a line when it is ready, and another line after each line
/// that it reads from standard input. The constructor and run() throw std::runtime_error if the process does not start
/// or ends before it answers.
class TorchProcess {
 public:
  /// Starts the Python interpreter ALIQUOT_BENCH_PYTHON. `words` has the script and its arguments.
  explicit TorchProcess(const std::vector<std::string>& words);
  ~TorchProcess();
  TorchProcess(const TorchProcess&) = delete;
  TorchProcess& operator=(const TorchProcess&) = delete;

  /// Requests one run of the work, and returns when the process has answered.
  void run();

  /// Whether the environment variable ALIQUOT_BENCH_PYTHON is set.
  static bool available();

 private:
  void await_line();

  pid_t process_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace aliquot
