#include "apps/text/unicode/utf8.h"

#include <cstdint>
#include <cstring>

namespace aliquot {
namespace {

constexpr char32_t kSmallestOfLength[] = {0, 0, 0x80, 0x800, 0x10000};

/// Returns the length of the valid code point at the beginning of `text`, or 0.
size_t valid_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = utf8_length(text[0]);
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  size_t at = 0;
  const char32_t code = next_code_point(text, at);
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallestOfLength[length] || code > 0x10ffff || is_surrogate ? 0 : length;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = kHighBits;
    if (text.size() - at >= sizeof word) std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & kHighBits) == 0) {
      at += sizeof word;
      continue;
    }
    const size_t length = valid_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

void append_utf8(std::string& to, char32_t code) {
  const auto put = [&to](char32_t byte) { to += static_cast<char>(static_cast<unsigned char>(byte)); };
  const auto put_rest = [&](int shift) { put(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put_rest(6);
  } else {
    put(0xf0 | code >> 18);
    put_rest(12);
    put_rest(6);
  }
  put_rest(0);
}

std::string to_utf8(std::u32string_view codes) {
  std::string text;
  text.reserve(codes.size());
  for (const char32_t code : codes) append_utf8(text, code);
  return text;
}

std::u32string to_code_points(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) codes += next_code_point(text, at);
  return codes;
}

}  // namespace aliquot
