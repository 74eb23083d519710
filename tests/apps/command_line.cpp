#include "tests/apps/command_line.h"

#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <pty.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/mpirun.h"

namespace aliquot::test {
namespace {

/// An unlinked temporary file that captures the output of a program.
class StreamCapture {
 public:
  StreamCapture() {
    std::string name = (std::filesystem::temp_directory_path() / "aliquot-output-XXXXXX").string();
    file_ = ::mkstemp(name.data());
    if (file_ < 0) throw std::runtime_error("cannot create the temporary file " + name);
    ::unlink(name.c_str());
  }
  ~StreamCapture() { ::close(file_); }
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  int file() const { return file_; }
  std::string text() const {
    std::string text(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    if (::pread(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
      text = "(cannot read the captured output)";
    return text;
  }

 private:
  int file_;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

CommandResult run_program(const std::string& path, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  const StreamCapture out, err;
  std::vector<std::string> words{path}, variables = environment;
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.file(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.file(), STDERR_FILENO);
  pid_t child = 0;
  const int refused =
      ::posix_spawn(&child, path.c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) throw std::runtime_error("cannot run " + path);
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out.text(), err.text(), int64_t{used.ru_maxrss} << 10};
}

CommandResult run_on_terminal(const std::string& path, const std::vector<std::string>& arguments, int columns,
                              const std::vector<std::string>& environment) {
  std::vector<std::string> words{path}, variables = environment;
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  const std::vector<char*> word_pointers = pointers(words), variable_pointers = pointers(variables);
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("cannot open a terminal");
  if (child == 0) {
    ::execve(path.c_str(), word_pointers.data(), variable_pointers.data());
    ::_exit(127);
  }
  CommandResult result;
  char buffer[4096];
  // Reading fails when the program has closed the terminal.
  for (ssize_t count; (count = ::read(terminal, buffer, sizeof buffer)) > 0;)
    result.out.append(buffer, static_cast<size_t>(count));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::erase(result.out, '\r');
  return result;
}

CommandResult run_aliquot(const std::vector<std::string>& arguments) {
  return run_program(aliquot_program(), arguments);
}

CommandResult run_aliquot_under_mpirun(int ranks, const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment) {
  std::vector<std::string> words{"mpirun", "--oversubscribe", "-n", std::to_string(ranks), aliquot_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program("/usr/bin/env", words, mpirun_environment(environment));
}

bool has_mpi() {
  if (run_program("/bin/sh", {"-c", "command -v mpirun >/dev/null"}).code != 0) return false;
  const std::string report = run_aliquot({"doctor"}).out;
  const size_t line = report.find("\nMPI ") + 1;
  return report.substr(line, report.find('\n', line) - line).find("not in this build") == std::string::npos;
}

std::string aliquot_program() { return ALIQUOT_PROGRAM; }

}  // namespace aliquot::test
