#pragma once
// The characters that stand for bytes in the vocabulary of a byte-level tokenizer.

#include <optional>
#include <string>
#include <string_view>

namespace aliquot {

/// Returns the bytes that `token` stands for. Returns nullopt if a character of `token` stands for no byte. Printable
/// characters of Latin-1 stand for their own code. The other bytes, in order, are U+0100, U+0101, and so on.
std::optional<std::string> bytes_of_token(std::string_view token);

/// Returns the character that stands for `byte`.
std::string token_of_byte(char byte);

}  // namespace aliquot
