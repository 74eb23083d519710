#pragma once
// Encodes text as the tokens of a Hugging Face tokenizer.json.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/text/added_tokens.h"
#include "apps/text/models/token_model.h"
#include "apps/text/normalizer.h"
#include "apps/text/pre_tokenizer.h"

namespace aliquot {

/// A tokenizer of the types BPE or Unigram. Encodes as the tokenizers package does without special tokens
/// (add_special_tokens=False), so the post-processor has no effect. TokenDecoder is the reverse.
class Tokenizer {
 public:
  /// Parses the text of a tokenizer.json. Throws UsageError, whose message begins with `file`, if the file is invalid
  /// or has a part that is not supported.
  Tokenizer(std::string_view text, const std::string& file);
  /// Reads a file. Also throws UsageError if it is not a regular file of at most 256 MiB.
  static std::unique_ptr<Tokenizer> read(const std::filesystem::path& file);

  /// The largest number of a token, plus 1.
  int64_t vocabulary_size() const;
  /// The number of a token of the vocabulary or of an added token.
  std::optional<int32_t> find(std::string_view token) const;
  /// SHA-256 of the text of the tokenizer.json, in hexadecimal digits.
  const std::string& sha256() const { return sha256_; }
  /// The text of the tokenizer.json, and its name in messages.
  const std::string& json() const { return json_; }
  const std::string& file() const { return file_; }
  /// Calls visit(token, number, is_special) for each token. Added tokens come last. They can repeat tokens of the
  /// vocabulary.
  void for_each(const std::function<void(std::string_view, int32_t, bool)>& visit) const;

  /// Encodes text. Each thread uses its own encoder.
  class Encoder {
   public:
    /// `tokenizer` must outlive the encoder.
    explicit Encoder(const Tokenizer& tokenizer);
    /// Appends the tokens of `text` to `tokens`. The text must be valid UTF-8. Throws UsageError if the tokenizer
    /// cannot encode the text.
    void encode(std::string_view text, std::vector<int32_t>& tokens);

   private:
    void encode_segment(std::string_view text, bool is_first, std::vector<int32_t>& tokens);

    const Tokenizer& tokenizer_;
    std::unique_ptr<PieceEncoder> model_;
  };

 private:
  std::string json_, file_, sha256_;
  std::optional<Normalizer> normalizer_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  std::optional<AddedTokens> added_;
};

/// Returns the name of the token that ends a document: <|endoftext|>, <|end_of_text|>, </s> or <eos>, the first of
/// these that the tokenizer has. Returns nullopt if it has none.
std::optional<std::string> end_of_text_token(const Tokenizer& tokenizer);

}  // namespace aliquot
