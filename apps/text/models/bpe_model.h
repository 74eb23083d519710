#pragma once
// Byte-pair encoding: a piece begins as characters, and adjacent tokens are merged in the order of a list.

#include <optional>
#include <string_view>

#include "apps/text/models/byte_fallback.h"
#include "apps/text/models/flat_map.h"
#include "apps/text/models/string_hash.h"
#include "apps/text/models/token_model.h"

namespace aliquot {

class BpeModel : public TokenModel {
 public:
  /// With `is_byte_level`, the characters of a piece are its bytes.
  BpeModel(const JsonField& field, bool is_byte_level);

  std::optional<int32_t> find(std::string_view token) const override { return find_token(tokens_, token); }
  void for_each(const std::function<void(std::string_view, int32_t)>& visit) const override {
    for (const auto& [token, number] : tokens_) visit(token, number);
  }
  int64_t token_count() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t largest_token() const override { return largest_; }
  std::unique_ptr<PieceEncoder> make_encoder() const override;

  struct Merge {
    int32_t rank, token;  // the position in the list, and the merged token
  };
  /// The merge of two adjacent tokens, if there is one.
  std::optional<Merge> merge_of(int32_t left, int32_t right) const {
    const uint64_t* found = merges_.find(pair_key(left, right));
    if (found == nullptr) return std::nullopt;
    return Merge{static_cast<int32_t>(*found >> 32), static_cast<int32_t>(*found & 0xffffffffu)};
  }

  bool is_byte_level() const { return is_byte_level_; }
  /// The token of a whole piece, if the model prefers it over merges (ignore_merges).
  std::optional<int32_t> whole_piece(std::string_view piece) const { return find_token(pieces_, piece); }
  /// The token of a character, or -1. With is_byte_level(), the code is a byte.
  int32_t character(char32_t code) const {
    const uint64_t* found = characters_.find(code);
    return found == nullptr ? -1 : static_cast<int32_t>(*found);
  }
  /// Whether a token of the merges has these characters next to each other. If not, a piece can be cut between them.
  bool can_be_adjacent(char32_t left, char32_t right) const {
    return adjacent_.find(uint64_t{left} << 32 | right) != nullptr;
  }
  const ByteTokens& byte_tokens() const { return fallback_; }
  std::optional<int32_t> unknown() const { return unknown_; }
  bool fuses_unknown() const { return fuses_unknown_; }

 private:
  static uint64_t pair_key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void read_vocabulary(const JsonField& vocabulary);
  void read_merge(const JsonField& merge, int32_t rank);
  void note_adjacent(std::string_view token);

  bool is_byte_level_;
  TokenMap tokens_;
  TokenMap pieces_;  // with ignore_merges: tokens by the text that they stand for
  FlatMap merges_, characters_, adjacent_;
  ByteTokens fallback_;
  std::optional<int32_t> unknown_;
  bool fuses_unknown_ = false;
  int64_t largest_ = 0;
};

}  // namespace aliquot
