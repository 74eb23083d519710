#pragma once
// Checks of the names of tensors and scalars, including names that are read from files.

#include <cstddef>
#include <string>
#include <string_view>

namespace aliquot {

inline constexpr std::size_t kPathBytesLimit = 1024;

/// Returns the reason why `path` is not a valid tensor name, such as "is not UTF-8", or "" if it is valid. Messages
/// print the name and then the reason. Valid names are UTF-8 of at most kPathBytesLimit bytes, without control
/// characters and without empty, "." or ".." components.
std::string path_defect(std::string_view path);

/// Returns whether `text` is UTF-8 without NUL characters, as HDF5 attributes and JSON require.
bool is_plain_text(std::string_view text);

/// Returns `text` for use in a message: control and non-ASCII characters become '?', and the text is truncated to
/// kPathBytesLimit bytes.
std::string printable(std::string_view text);

}  // namespace aliquot
