#pragma once
// What the command says on its standard streams. One that cannot take it, a full disk or a reader that has gone, ends no
// run: what was lost of the output is told when all is done.

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace aliquot {

/// The text as it is. From any thread; throws nothing but what formatting throws.
void write_stream(std::FILE* stream, std::string_view text);

/// On standard output.
template <typename... T>
void write_stdout(fmt::format_string<T...> words, T&&... values) {
  write_stream(stdout, fmt::format(words, std::forward<T>(values)...));
}

/// On standard error, a sentence: "aliquot: " comes before it, and the line ends after it.
template <typename... T>
void warn(fmt::format_string<T...> words, T&&... values) {
  write_stream(stderr, "aliquot: " + fmt::format(words, std::forward<T>(values)...) + "\n");
}

/// Before anything is opened: a standard stream that is closed leads nowhere from now on, so that no file of the run takes
/// its place and what is said does not end up there.
void reserve_standard_streams();

/// When all is done: why not everything reached standard output, or nothing.
std::string stdout_error();

}  // namespace aliquot
