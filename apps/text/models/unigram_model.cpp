// Unigram models: the tokens of a piece are those with the largest sum of scores.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <utility>

#include "apps/text/models/byte_fallback.h"
#include "apps/text/models/byte_trie.h"
#include "apps/text/models/string_hash.h"
#include "apps/text/models/token_model.h"
#include "apps/text/unicode/utf8.h"
#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Rounds a score as the tokenizers package does. The package reads the decimal digits as an integer, and then divides
/// by a power of ten. So the last bit can differ from that of the nearest number. Two ways to cut a text can have
/// scores that differ only in the last bit, and the package takes the higher one.
double package_rounding(double score) {
  char text[64];
  const auto end = std::to_chars(text, std::end(text), std::abs(score), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool in_fraction = false; at != end && *at != 'e'; ++at) {
    if (*at == '.') {
      in_fraction = true;
      continue;
    }
    digits = 10 * digits + static_cast<uint64_t>(*at - '0');
    if (in_fraction) --exponent;
  }
  int shift = 0;
  if (at != end) std::from_chars(at[1] == '+' ? at + 2 : at + 1, end, shift);
  exponent += shift;
  if (std::abs(exponent) > 300) return score;
  const double power = std::strtod(fmt::format("1e{}", std::abs(exponent)).c_str(), nullptr);
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(const JsonField& field) {
    field.allow_keys({"type", "unk_id", "vocab", "byte_fallback"});
    field["vocab"].for_each([this](const JsonField& entry) { add(entry); });
    field["vocab"].require(!scores_.empty(), "expected at least one token");
    if (const JsonField unknown = field["unk_id"]; !unknown.is_null())
      unknown_ = static_cast<int32_t>(unknown.index(token_count() - 1));
    if (field["byte_fallback"].flag(false))
      fallback_ = find_byte_tokens([this](std::string_view token) { return find(token); });
    unknown_score_ = *std::ranges::min_element(scores_) - kUnknownPenalty;
  }

  std::optional<int32_t> find(std::string_view token) const override { return find_token(tokens_, token); }
  void for_each(const std::function<void(std::string_view, int32_t)>& visit) const override {
    for (const auto& [token, number] : tokens_) visit(token, number);
  }
  int64_t token_count() const override { return static_cast<int64_t>(scores_.size()); }
  int64_t largest_token() const override { return token_count() - 1; }
  std::unique_ptr<PieceEncoder> make_encoder() const override;

 private:
  friend class UnigramEncoder;
  static constexpr double kUnknownPenalty = 10;

  void add(const JsonField& entry) {
    const nlohmann::json& pair = entry.json();
    const bool is_valid = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_number();
    entry.require(is_valid, "expected a token and its score");
    entry.require(token_count() <= kLargestToken, "the vocabulary is too large");
    const std::string& token = pair[0].get_ref<const std::string&>();
    const auto number = static_cast<int32_t>(scores_.size());
    scores_.push_back(package_rounding(pair[1].get<double>()));
    tokens_[token] = number;
    if (!token.empty()) trie_.insert(token, number);
  }

  TokenMap tokens_;
  std::vector<double> scores_;
  ByteTrie trie_;
  std::optional<int32_t> unknown_;
  double unknown_score_ = 0;
  ByteTokens fallback_;
};

/// Finds the best tokens by dynamic programming over the positions of a piece. A code point that is not a token gets
/// the unknown token, with a score below all others. Adjacent unknown tokens become one.
class UnigramEncoder : public PieceEncoder {
 public:
  explicit UnigramEncoder(const UnigramModel& model) : model_(model) {}

  void encode(std::string_view piece, std::vector<int32_t>& tokens) override {
    find_best_ends(piece);
    spans_.clear();
    size_t unknown_end = 0;  // end of the unknown tokens after the current position; 0 if there are none
    for (size_t end = piece.size(); end > 0; end = ends_[end].begin) {
      const End& best = ends_[end];
      if (model_.unknown_ && best.token == *model_.unknown_) {
        if (unknown_end == 0) unknown_end = end;
        if (best.begin > 0) continue;
        spans_.push_back({0, unknown_end});
        break;
      }
      if (unknown_end != 0) spans_.push_back({end, std::exchange(unknown_end, 0)});
      spans_.push_back({best.begin, end});
    }
    for (auto span = spans_.rbegin(); span != spans_.rend(); ++span)
      append(piece.substr(span->begin, span->end - span->begin), tokens);
  }

 private:
  /// The best path to a position: its last token begins at `begin`.
  struct End {
    static constexpr size_t kUnreached = std::numeric_limits<size_t>::max();
    double score = 0;
    size_t begin = kUnreached;
    int32_t token = 0;
  };
  struct Span {
    size_t begin, end;
  };

  bool improves(size_t begin, size_t end, double score) const {
    return ends_[end].begin == End::kUnreached || score + ends_[begin].score > ends_[end].score;
  }
  void offer(size_t begin, size_t end, int32_t token, double score) {
    if (improves(begin, end, score)) ends_[end] = {score + ends_[begin].score, begin, token};
  }

  void find_best_ends(std::string_view piece) {
    ends_.assign(piece.size() + 1, {});
    for (size_t at = 0; at < piece.size();) {
      const size_t length = utf8_length(piece[at]);
      bool has_single = false;
      model_.trie_.for_prefixes(piece.substr(at), [&](size_t token_length, int32_t token) {
        offer(at, at + token_length, token, model_.scores_[static_cast<size_t>(token)]);
        has_single = has_single || token_length == length;
      });
      if (!has_single && improves(at, at + length, model_.unknown_score_))
        offer(at, at + length, unknown_token(piece.substr(at, length)), model_.unknown_score_);
      at += length;
    }
  }

  int32_t unknown_token(std::string_view text) const {
    if (model_.unknown_) return *model_.unknown_;
    throw UsageError("the tokenizer has no token for '" + printable(text) + "', and no unk_id.");
  }

  void append(std::string_view text, std::vector<int32_t>& tokens) {
    if (const auto token = model_.find(text)) return tokens.push_back(*token);
    if (append_byte_tokens(model_.fallback_, text, tokens)) return;
    tokens.push_back(unknown_token(text));
  }

  const UnigramModel& model_;
  std::vector<End> ends_;
  std::vector<Span> spans_;
};

std::unique_ptr<PieceEncoder> UnigramModel::make_encoder() const { return std::make_unique<UnigramEncoder>(*this); }

}  // namespace

std::unique_ptr<TokenModel> read_unigram_model(const JsonField& field, bool is_byte_level) {
  field["type"].require(!is_byte_level, "not supported with the pre-tokenizer ByteLevel");
  return std::make_unique<UnigramModel>(field);
}

}  // namespace aliquot
