#pragma once
// The pre-tokenizer of a tokenizer.json.

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/json_field.h"

namespace aliquot {

/// A part of a text. The model encodes each piece separately.
struct TextPiece {
  std::string_view text;
  bool is_first = false;  // the piece begins where the document begins
};

/// The pieces of a text, and the memory of those that differ from the text.
struct TextPieces {
  std::vector<TextPiece> pieces;
  std::deque<std::string> changed;
};

/// Splits text into pieces. Supports null, Sequence, ByteLevel, Split, Metaspace, WhitespaceSplit and Digits.
class PreTokenizer {
 public:
  /// Throws UsageError for a pre-tokenizer that is not supported.
  explicit PreTokenizer(const JsonField& field) { add(field); }

  /// Splits each of `pieces`. Omits empty parts. Safe to call from several threads.
  void split(TextPieces& pieces) const {
    for (const Step& step : steps_) step(pieces);
  }
  /// Whether the model sees each byte as a character of its own (ByteLevel).
  bool is_byte_level() const { return is_byte_level_; }

 private:
  using Step = std::function<void(TextPieces&)>;

  void add(const JsonField& field);
  void add_byte_level(const JsonField& field);
  void add_split(const JsonField& field);
  void add_metaspace(const JsonField& field);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace aliquot
