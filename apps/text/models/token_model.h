#pragma once
// The model of a tokenizer.json, which encodes pieces of text as tokens.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/json_field.h"

namespace aliquot {

/// Encodes pieces of text. Has memory of its own, so each thread uses its own encoder.
class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;
  /// Appends the tokens of `piece`, which is not empty, to `tokens`.
  virtual void encode(std::string_view piece, std::vector<int32_t>& tokens) = 0;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  /// Calls visit(token, number) for each token, in any order.
  virtual void for_each(const std::function<void(std::string_view, int32_t)>& visit) const = 0;
  /// The number of tokens, and the largest number of a token.
  virtual int64_t token_count() const = 0;
  virtual int64_t largest_token() const = 0;
  /// The model must outlive the encoder.
  virtual std::unique_ptr<PieceEncoder> make_encoder() const = 0;
};

/// The largest number of a token that a tokenizer may have.
inline constexpr int64_t kLargestToken = (int64_t{1} << 24) - 1;

/// Reads the model of type BPE or Unigram. With `is_byte_level`, each byte of a piece is a character. Throws UsageError
/// for another model, and for options that are not supported.
std::unique_ptr<TokenModel> read_token_model(const JsonField& field, bool is_byte_level);

std::unique_ptr<TokenModel> read_bpe_model(const JsonField& field, bool is_byte_level);
std::unique_ptr<TokenModel> read_unigram_model(const JsonField& field, bool is_byte_level);

}  // namespace aliquot
