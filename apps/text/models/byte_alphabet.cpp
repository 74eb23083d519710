#include "apps/text/models/byte_alphabet.h"

#include <array>
#include <unordered_map>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

bool stands_for_itself(char32_t code) {
  return (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || (code >= 0xae && code <= 0xff);
}

/// The character of each byte.
std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  char32_t other = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) characters[byte] = stands_for_itself(byte) ? byte : other++;
  return characters;
}

const std::array<char32_t, 256>& characters() {
  static const std::array<char32_t, 256> all = make_characters();
  return all;
}

std::unordered_map<char32_t, char> make_alphabet() {
  std::unordered_map<char32_t, char> bytes;
  for (size_t byte = 0; byte < 256; ++byte)
    bytes.emplace(characters()[byte], static_cast<char>(static_cast<unsigned char>(byte)));
  return bytes;
}

}  // namespace

std::string token_of_byte(char byte) {
  std::string token;
  append_utf8(token, characters()[static_cast<unsigned char>(byte)]);
  return token;
}

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
