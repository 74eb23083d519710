#pragma once
// The tokens of single bytes, which encode characters that are not in the vocabulary.

#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// The tokens <0x00> to <0xFF>. Missing tokens are -1. An empty array means that the model has no byte fallback.
using ByteTokens = std::vector<int32_t>;

/// `find(token)` returns the number of a token, or nullopt.
template <typename Find>
ByteTokens find_byte_tokens(Find&& find) {
  ByteTokens tokens(256);
  for (int byte = 0; byte < 256; ++byte)
    tokens[static_cast<size_t>(byte)] = find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  return tokens;
}

/// Appends the tokens of all bytes of `text`. Returns false, without a change, if a token is missing.
inline bool append_byte_tokens(const ByteTokens& bytes, std::string_view text, std::vector<int32_t>& tokens) {
  if (bytes.empty()) return false;
  const size_t before = tokens.size();
  for (const char byte : text) {
    const int32_t token = bytes[static_cast<unsigned char>(byte)];
    if (token < 0) {
      tokens.resize(before);
      return false;
    }
    tokens.push_back(token);
  }
  return true;
}

}  // namespace aliquot
