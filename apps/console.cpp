#include "apps/console.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace aliquot {

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
