#include "bench/torch_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace aliquot {
namespace {

/// A pipe that other child processes do not inherit. Otherwise a process would not see the end of its standard input
/// while another one holds a copy of the writing end.
struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("cannot create a pipe to the PyTorch process: ") + std::strerror(errno));
  }
  int ends[2];
};

}  // namespace

bool TorchProcess::available() { return std::getenv("ALIQUOT_BENCH_PYTHON") != nullptr; }

TorchProcess::TorchProcess(const std::vector<std::string>& words) {
  std::vector<std::string> all = {std::getenv("ALIQUOT_BENCH_PYTHON")};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Pipe in, out;
  process_ = fork();
  if (process_ < 0) throw std::runtime_error(std::string("cannot fork the PyTorch process: ") + std::strerror(errno));
  if (process_ == 0) {
    dup2(in.ends[0], STDIN_FILENO);
    dup2(out.ends[1], STDOUT_FILENO);
    for (const int end : {in.ends[0], in.ends[1], out.ends[0], out.ends[1]}) close(end);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in.ends[0]), close(out.ends[1]);
  to_ = in.ends[1], from_ = out.ends[0];
  await_line();
}

TorchProcess::~TorchProcess() {
  close(to_), close(from_);  // the process ends when its standard input ends
  waitpid(process_, nullptr, 0);
}

void TorchProcess::run() {
  std::signal(SIGPIPE, SIG_IGN);
  if (write(to_, "run\n", 4) != 4) throw std::runtime_error("cannot send a request: the PyTorch process has ended");
  await_line();
}

void TorchProcess::await_line() {
  for (char letter = 0; letter != '\n';) {
    if (read(from_, &letter, 1) != 1)
      throw std::runtime_error("the PyTorch process ended before it answered: check ALIQUOT_BENCH_PYTHON");
  }
}

}  // namespace aliquot
