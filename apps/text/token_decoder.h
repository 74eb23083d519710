#pragma once
// Converts tokens back to text.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/text/json_field.h"
#include "apps/text/tokenizer.h"
#include "apps/text/utf8_stream.h"

namespace aliquot {

/// Decodes the tokens of one text, one after the other, as the tokenizers package does with skip_special_tokens=True.
/// Supports the decoders ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace, and sequences of them.
class TokenDecoder {
 public:
  /// Throws UsageError, with the name of the tokenizer's file, if its decoder is not supported.
  explicit TokenDecoder(const Tokenizer& tokenizer);

  /// Appends a token. Returns the characters of the text that are complete now. A special token, and a number that no
  /// token has, add no text. Throws UsageError if the decoder makes the token longer than 1 MiB.
  std::string append(int32_t token);
  /// Begins another text.
  void restart();
  /// Returns the rest of the text: U+FFFD if the last character is incomplete.
  std::string finish() { return text_.finish(); }

 private:
  using Step = std::function<void(std::string&)>;

  void add(const JsonField& field);
  void add_replace(const JsonField& field);
  void add_strip(const JsonField& field);
  void add_metaspace(const JsonField& field);

  std::vector<std::string> tokens_;  // by number; empty: none, or a special token
  std::vector<Step> steps_;          // change one token into its bytes
  bool is_null_ = false;             // without a decoder, the text has a blank between two tokens
  bool is_first_ = true;
  std::string stripped_;       // the character that Strip removes at the beginning of a text
  int64_t strip_count_ = 0;    // how often
  int64_t left_to_strip_ = 0;  // how often it can still do so in the current text
  Utf8Stream text_;
};

}  // namespace aliquot
