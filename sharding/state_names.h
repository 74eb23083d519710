#pragma once
// Rules for names of tensors and scalars, which also apply to names read from files.

#include <cstddef>
#include <string>
#include <string_view>

namespace aliquot {

inline constexpr std::size_t kPathBytesLimit = 1024;

/// The reason why `path` is not a valid tensor name, to follow the name in a message, such as "is not UTF-8". Empty if
/// it is valid. Invalid: too long; not UTF-8; a control character; an empty, "." or ".." component.
std::string path_defect(std::string_view path);

/// Whether `text` is UTF-8 without NUL characters, as attributes and JSON require.
bool is_plain_text(std::string_view text);

/// Returns `text` for use in a message: control and non-ASCII characters become '?', and the text is truncated to
/// kPathBytesLimit bytes.
std::string printable(std::string_view text);

}  // namespace aliquot
