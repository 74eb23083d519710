#pragma once
// Tokens that are found in the text before the model encodes the rest: the added tokens of a tokenizer.json.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/json_field.h"
#include "apps/text/models/byte_trie.h"
#include "apps/text/models/string_hash.h"
#include "apps/text/models/token_model.h"
#include "apps/text/normalizer.h"

namespace aliquot {

/// A part of a text: an added token, or text between added tokens.
struct TextSegment {
  size_t begin, end;
  std::optional<int32_t> token;
};

class AddedTokens {
 public:
  /// Throws UsageError if an entry is not supported, or if its number differs from the one that the tokenizers package
  /// assigns: the number of the same token in the model, or else the next free number.
  AddedTokens(const JsonField& field, const TokenModel& model, const Normalizer& normalizer);

  /// Cuts text at the tokens that are found before normalization, or at those that are found after it. Returns
  /// segments that cover the text. Of several tokens at one position, the longest is found.
  std::vector<TextSegment> cut(std::string_view text) const { return cut(text, plain_); }
  std::vector<TextSegment> cut_normalized(std::string_view text) const { return cut(text, normalized_); }

  std::optional<int32_t> find(std::string_view token) const { return find_token(tokens_, token); }
  int64_t largest_token() const { return largest_; }  // -1 if there is none
  /// Calls visit(content, number, is_special) for each token.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [content, number] : tokens_) visit(content, number, special_.contains(number));
  }

 private:
  struct Entry {
    int32_t token;
    bool takes_left, takes_right;  // the token includes white space on this side
  };

  void add(const JsonField& field, const TokenModel& model, const Normalizer& normalizer);
  std::vector<TextSegment> cut(std::string_view text, const ByteTrie& contents) const;

  std::vector<Entry> entries_;  // the values of the tries are indices of this list
  ByteTrie plain_, normalized_;
  TokenMap tokens_;
  std::set<int32_t> special_;  // tokens that are not part of a text, for example the end of a document
  int64_t largest_ = -1;
};

}  // namespace aliquot
