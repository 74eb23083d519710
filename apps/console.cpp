#include "apps/console.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace aliquot {

void write_stream(std::FILE* stream, std::string_view text) { std::fwrite(text.data(), 1, text.size(), stream); }

void reserve_standard_streams() {
  // The lowest free number is taken, so that each comes to its own place.
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    if (open("/dev/null", O_RDWR) != stream) return;  // not even that is there: nothing better can be done
  }
}

std::string stdout_error() {
  const bool lost_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !lost_before) return "";
  return errno != 0 ? std::strerror(errno) : "a part of it was lost";
}

}  // namespace aliquot
