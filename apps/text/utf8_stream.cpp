#include "apps/text/utf8_stream.h"

#include <cstddef>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

/// The second byte of these characters has a smaller range, because other values would encode a surrogate, a code point
/// above U+10FFFF, or a code point that has a shorter encoding.
bool can_be_second(unsigned char first, unsigned char second) {
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return least <= second && second <= most;
}

/// The number of bytes at the beginning of `text` that can begin a character; 0 if the first byte cannot.
size_t begun_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0xc2 || first > 0xf4) return 0;
  size_t count = 1;
  while (count < utf8_length(text[0]) && count < text.size()) {
    const auto next = static_cast<unsigned char>(text[count]);
    if (count == 1 ? !can_be_second(first, next) : (next & 0xc0) != 0x80) break;
    ++count;
  }
  return count;
}

}  // namespace

std::string Utf8Stream::append(std::string_view bytes) {
  pending_ += bytes;
  std::string complete;
  std::string_view rest = pending_;
  while (const auto invalid = find_invalid_utf8(rest)) {
    complete += rest.substr(0, *invalid);
    rest.remove_prefix(*invalid);
    const size_t begun = begun_bytes(rest);
    if (begun == rest.size()) {
      pending_ = std::string(rest);
      return complete;
    }
    complete += kReplacement;
    rest.remove_prefix(begun == 0 ? 1 : begun);
  }
  complete += rest;
  pending_.clear();
  return complete;
}

std::string Utf8Stream::finish() {
  const bool is_incomplete = !pending_.empty();
  pending_.clear();
  return std::string(is_incomplete ? kReplacement : "");
}

}  // namespace aliquot
