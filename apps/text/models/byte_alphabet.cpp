#include "apps/text/models/byte_alphabet.h"

#include <unordered_map>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

bool stands_for_itself(char32_t code) {
  return (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || (code >= 0xae && code <= 0xff);
}

std::unordered_map<char32_t, char> make_alphabet() {
  std::unordered_map<char32_t, char> bytes;
  char32_t other = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte)
    bytes.emplace(stands_for_itself(byte) ? byte : other++, static_cast<char>(static_cast<unsigned char>(byte)));
  return bytes;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const std::unordered_map<char32_t, char> alphabet = make_alphabet();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto found = alphabet.find(next_code_point(token, at));
    if (found == alphabet.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

}  // namespace aliquot
