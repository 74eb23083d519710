#pragma once
// The map of a tokenizer.json's normalizer Precompiled, which SentencePiece models contain.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/json_field.h"

namespace aliquot {

/// Replaces parts of a text. Has a trie of the parts, as a double array, and their replacements. Safe to use from
/// several threads.
class PrecompiledMap {
 public:
  /// Decodes the base64 text of precompiled_charsmap. Throws UsageError if it is malformed.
  explicit PrecompiledMap(const JsonField& field);

  /// Replaces parts of valid UTF-8 text in place, as the tokenizers package does. A grapheme cluster of less than six
  /// bytes that begins with a part is replaced as a whole. In other clusters, each code point is replaced by itself.
  void apply(std::string& text) const;

 private:
  /// Sets `replacement` to that of the shortest part with which `text` begins. Returns whether there is one.
  bool find(std::string_view text, std::string_view& replacement) const;
  bool replacement_at(uint32_t index, std::string_view& replacement) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace aliquot
