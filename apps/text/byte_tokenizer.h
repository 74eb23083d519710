#pragma once
// Writes the tokenizer.json of a byte-level BPE tokenizer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aliquot {

/// The tokens of a byte-level BPE. Tokens 0 to 255 are the bytes, and token 256 + i is merge i.
struct ByteLevelTokens {
  std::vector<std::pair<int32_t, int32_t>> merges = {};
  std::string end_of_text = {};  // the text of the special token after the merges; empty: there is none
  bool splits_words = false;     // cut text into words before the merges, as GPT-2 does
};

/// Returns the text of a tokenizer.json.
std::string tokenizer_json(const ByteLevelTokens& tokens);

/// The tokenizer of files whose bytes are the tokens: each byte is the token of the same number.
inline std::string byte_tokenizer_json() { return tokenizer_json({}); }

}  // namespace aliquot
