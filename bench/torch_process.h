#pragma once
// PyTorch in a process of its own that does one thing each time it is asked, so that it can be measured in turn with ours.

#include <string>
#include <sys/types.h>
#include <vector>

namespace aliquot {

/// A program that prints a line when it is ready, and another after each line that it is given. Throws std::runtime_error
/// where it does not start, or ends before it answers.
class TorchProcess {
 public:
  /// `words`: the script and its arguments, for the Python that ALIQUOT_BENCH_PYTHON names.
  explicit TorchProcess(const std::vector<std::string>& words);
  ~TorchProcess();
  TorchProcess(const TorchProcess&) = delete;
  TorchProcess& operator=(const TorchProcess&) = delete;

  /// Asks once, and returns when it has answered.
  void run();

  /// Whether ALIQUOT_BENCH_PYTHON names a Python.
  static bool available();

 private:
  void await_line();

  pid_t process_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace aliquot
