#pragma once
// Grapheme clusters: the characters that a reader sees.

#include <cstddef>
#include <string_view>

namespace aliquot {

/// Returns the end of the extended grapheme cluster that begins at `begin`, which must be less than the size of the
/// text. The text must be valid UTF-8.
size_t grapheme_end(std::string_view text, size_t begin);

}  // namespace aliquot
