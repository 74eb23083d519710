#include "apps/text/models/bpe_model.h"

#include <algorithm>

#include "apps/text/models/byte_alphabet.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot {

BpeModel::BpeModel(const JsonField& field, bool is_byte_level) : is_byte_level_(is_byte_level) {
  field.allow_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const JsonField dropout = field["dropout"]; !dropout.is_null())
    dropout.require(dropout.json().is_number() && dropout.json().get<double>() == 0, "expected null or 0");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const JsonField affix = field[key]; !affix.is_null())
      affix.require(affix.text().empty(), "not supported (only null or an empty string)");
  }
  read_vocabulary(field["vocab"]);
  if (const JsonField unknown = field["unk_token"]; !unknown.is_null()) {
    unknown_ = find(unknown.text());
    unknown.require(unknown_.has_value(), "this token is not in model.vocab");
  }
  fuses_unknown_ = field["fuse_unk"].flag(false);
  if (field["byte_fallback"].flag(false)) {
    field["byte_fallback"].require(!is_byte_level, "not supported with the pre-tokenizer ByteLevel");
    fallback_ = find_byte_tokens([this](std::string_view token) { return find(token); });
  }
  int32_t rank = 0;
  field["merges"].for_each([&](const JsonField& merge) { read_merge(merge, rank++); });
  if (!field["ignore_merges"].flag(false)) return;
  for (const auto& [token, number] : tokens_) {
    const auto piece = is_byte_level ? bytes_of_token(token) : std::optional(token);
    if (piece) pieces_.emplace(*piece, number);
  }
}

void BpeModel::read_vocabulary(const JsonField& vocabulary) {
  vocabulary.require(vocabulary.json().is_object() && !vocabulary.json().empty(), "expected an object with tokens");
  tokens_.reserve(vocabulary.json().size());
  for (const auto& [token, number] : vocabulary.json().items()) {
    const bool is_valid = number.is_number_unsigned() && number.get<uint64_t>() <= uint64_t{kLargestToken};
    if (!is_valid) vocabulary[token].index(kLargestToken);  // throws
    const auto value = number.get<int32_t>();
    tokens_.emplace(token, value);
    largest_ = std::max<int64_t>(largest_, value);
    const auto text = is_byte_level_ ? bytes_of_token(token) : std::optional(token);
    if (!text || text->empty()) continue;
    size_t at = 0;
    const char32_t code = is_byte_level_ ? static_cast<unsigned char>((*text)[at++]) : next_code_point(*text, at);
    if (at == text->size()) characters_.insert_or_assign(code, static_cast<uint64_t>(value));
  }
}

void BpeModel::read_merge(const JsonField& merge, int32_t rank) {
  std::string left, right;
  if (merge.json().is_array()) {
    const bool is_pair = merge.json().size() == 2 && merge.json()[0].is_string() && merge.json()[1].is_string();
    merge.require(is_pair, "expected two tokens");
    left = merge.json()[0].get<std::string>();
    right = merge.json()[1].get<std::string>();
  } else {
    const std::string& both = merge.text();
    const size_t blank = both.find(' ');
    const bool is_pair = blank != std::string::npos && both.find(' ', blank + 1) == std::string::npos;
    merge.require(is_pair, "expected two tokens with a blank between them");
    left = both.substr(0, blank);
    right = both.substr(blank + 1);
  }
  const auto first = find(left), second = find(right), merged = find(left + right);
  merge.require(first && second && merged, "expected both tokens and the merged token in model.vocab");
  merges_.insert_or_assign(pair_key(*first, *second),
                           uint64_t{static_cast<uint32_t>(rank)} << 32 | static_cast<uint32_t>(*merged));
  if (!is_byte_level_) note_adjacent(left + right);
}

void BpeModel::note_adjacent(std::string_view token) {
  char32_t before = 0;
  for (size_t at = 0; at < token.size();) {
    const bool is_first = at == 0;
    const char32_t code = next_code_point(token, at);
    if (!is_first) adjacent_.insert_or_assign(uint64_t{before} << 32 | code, 1);
    before = code;
  }
}

std::unique_ptr<TokenModel> read_bpe_model(const JsonField& field, bool is_byte_level) {
  return std::make_unique<BpeModel>(field, is_byte_level);
}

}  // namespace aliquot
