#include "apps/console.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace aliquot {
namespace {

bool is_launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

/// The parent of a process; 0 if unknown.
pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name of the program may contain blanks and brackets
  int parent = 0;
  if (name_end != std::string::npos) std::sscanf(text.c_str() + name_end, ") %*c %d", &parent);
  return parent;
}

bool is_terminal(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  const bool answer = file >= 0 && isatty(file) != 0;
  if (file >= 0) close(file);
  return answer;
}

}  // namespace

bool is_on_terminal(std::FILE* out) {
  using Status = struct stat;
  Status own{}, other{};
  if (isatty(fileno(out)) == 0) return false;
  if (!is_launched()) return true;
  if (fstat(fileno(out), &own) != 0) return false;
  // The first ancestor with another standard output is the launcher, or a program that it started on this node.
  for (pid_t process = getppid(); process > 1; process = parent_of(process)) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/1";
    if (stat(path.c_str(), &other) != 0) return false;
    if (other.st_rdev != own.st_rdev || other.st_ino != own.st_ino) return S_ISCHR(other.st_mode) && is_terminal(path);
  }
  return false;
}

void write_stream(std::FILE* stream, std::string_view text) { std::fwrite(text.data(), 1, text.size(), stream); }

std::string without_controls(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // In UTF-8, the second half of the control characters is 0xC2 and a byte from 0x80 to 0x9F.
    const bool second_half = byte >= 0x80 && byte < 0xA0 && i > 0 && text[i - 1] == '\xC2';
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F || second_half) text[i] = '?';
    if (second_half) text[i - 1] = '?';
  }
  return text;
}

void reserve_standard_streams() {
  // open() returns the lowest free descriptor. Here, that is `stream`, because all lower descriptors are open.
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    if (open("/dev/null", O_RDWR) != stream) return;  // without /dev/null, the streams stay closed
  }
}

std::string stdout_error() {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return "";
  return errno != 0 ? std::strerror(errno) : "an earlier write failed";
}

}  // namespace aliquot
