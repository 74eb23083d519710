#pragma once
// Learns a byte-level BPE tokenizer from text.

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/text/byte_tokenizer.h"
#include "apps/text/models/string_hash.h"
#include "apps/text/tokenizer.h"

namespace aliquot {

/// Counts the words of a text, then merges the most frequent pair of adjacent tokens again and again. Words are cut as
/// the pre-tokenizer of GPT-2 does. The result depends only on the texts, not on their order.
class BpeLearner {
 public:
  /// Adds a text, which must be valid UTF-8.
  void add(std::string_view text);
  /// Returns a tokenizer of `vocabulary` tokens, at least 257: bytes, merges and the token <|endoftext|>. It has fewer
  /// tokens if no further pair occurs twice.
  ByteLevelTokens learn(int64_t vocabulary) const;

 private:
  StringMap<int64_t> counts_;  // of each word
};

}  // namespace aliquot
