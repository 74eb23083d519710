#pragma once
// UTF-8.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace aliquot {

/// Returns the offset of the first byte that is not part of a valid code point, or nullopt. Surrogates, code points
/// above U+10FFFF and encodings that are too long are invalid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// The number of bytes of the code point that begins with `first`. The text must be valid.
constexpr size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// Decodes the code point at `at`, and moves `at` to the next one. The text must be valid.
inline char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at++);
  if (first < 0x80) return first;
  const size_t more = utf8_length(text[at - 1]) - 1;
  char32_t code = first & (0x3fu >> more);
  for (size_t i = 0; i < more; ++i) code = code << 6 | (byte(at++) & 0x3f);
  return code;
}

/// Moves `at`, which must not be 0, to the beginning of the code point before it.
inline void previous_code_point(std::string_view text, size_t& at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
}

void append_utf8(std::string& to, char32_t code);
std::string to_utf8(std::u32string_view codes);
std::u32string to_code_points(std::string_view text);

}  // namespace aliquot
