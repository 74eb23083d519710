#pragma once
// Output of the command to its standard streams. A failed write (full disk, closed pipe) does not end the run;
// stdout_error() reports it at the end.

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace aliquot {

/// Writes `text` unchanged, from any thread. Ignores write errors.
void write_stream(std::FILE* stream, std::string_view text);

/// Prints formatted text on standard output. Ignores write errors.
template <typename... T>
void write_stdout(fmt::format_string<T...> format, T&&... values) {
  write_stream(stdout, fmt::format(format, std::forward<T>(values)...));
}

/// Returns `text` with '?' in place of each control character except newlines and tabs. Names and values of a user's
/// files could otherwise control the terminal.
std::string without_controls(std::string text);

/// Prints one formatted line on standard error, after the prefix "aliquot: ". Replaces control characters. Ignores
/// write errors.
template <typename... T>
void warn(fmt::format_string<T...> format, T&&... values) {
  write_stream(stderr, without_controls("aliquot: " + fmt::format(format, std::forward<T>(values)...) + "\n"));
}

/// Whether a user sees `out` on a terminal. mpirun gives a rank a pseudo-terminal as standard output even if its own
/// output is a file or a pipe, so under a launcher the standard output of the launcher counts. If that is unknown, for
/// example on another node, returns false.
bool is_on_terminal(std::FILE* out);

/// Opens /dev/null in place of each closed standard stream. Otherwise a file of the run could get descriptor 0, 1 or 2
/// and receive the printed text. Call this before any file is opened.
void reserve_standard_streams();

/// Flushes standard output. Returns the reason if any output was lost, otherwise an empty string.
std::string stdout_error();

}  // namespace aliquot
