#pragma once
// What tensors and scalars of a state may be called, wherever they come from, and how a message says it.

#include <cstddef>
#include <string>
#include <string_view>

namespace aliquot {

inline constexpr std::size_t kPathBytesLimit = 1024;

/// Why `path` cannot name a tensor in a file: too long, an empty, "." or ".." component, a control character, not
/// UTF-8. Empty: it can.
std::string path_defect(std::string_view path);

/// UTF-8 without a NUL, as attributes and JSON can hold it.
bool is_plain_text(std::string_view text);

/// s with the quotes and control characters that a message must not carry replaced, and cut where it is longer than a path.
std::string printable(std::string_view text);

}  // namespace aliquot
