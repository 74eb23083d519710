#include "apps/text/tokenizer.h"

#include <algorithm>
#include <array>

#include "apps/data/whole_file.h"
#include "checkpoint/hash/sha256.h"

namespace aliquot {
namespace {

/// Refuses settings that change the tokens of a text. The post-processor adds only special tokens.
void check_other_fields(const JsonField& file) {
  file.allow_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  if (const JsonField version = file["version"]; !version.is_null())
    version.require(version.json() == "1.0", "not supported (only \"1.0\")");
  for (const char* key : {"truncation", "padding"}) {
    if (const JsonField field = file[key]; !field.is_null()) field.refuse("not supported (only null)");
  }
  if (const JsonField post = file["post_processor"]; !post.is_null()) {
    constexpr std::array<std::string_view, 5> kTypes{"ByteLevel", "TemplateProcessing", "Sequence", "RobertaProcessing",
                                                     "BertProcessing"};
    const bool is_known = std::ranges::find(kTypes, post["type"].text()) != kTypes.end();
    post["type"].require(is_known,
                         "not supported (only ByteLevel, TemplateProcessing, Sequence, RobertaProcessing, "
                         "BertProcessing)");
  }
}

}  // namespace

Tokenizer::Tokenizer(std::string_view text, const std::string& file)
    : json_(text), file_(file), sha256_(sha256_hex(text)) {
  const nlohmann::json json = parse_tokenizer_json(text, file);
  const JsonField all(json, "", file);
  check_other_fields(all);
  normalizer_.emplace(all["normalizer"]);
  pre_tokenizer_.emplace(all["pre_tokenizer"]);
  model_ = read_token_model(all["model"], pre_tokenizer_->is_byte_level());
  added_.emplace(all["added_tokens"], *model_, *normalizer_);
}

std::unique_ptr<Tokenizer> Tokenizer::read(const std::filesystem::path& path) {
  return std::make_unique<Tokenizer>(read_whole_file(path, 256), path.string());
}

int64_t Tokenizer::vocabulary_size() const { return std::max(model_->largest_token(), added_->largest_token()) + 1; }

void Tokenizer::for_each(const std::function<void(std::string_view, int32_t, bool)>& visit) const {
  model_->for_each([&](std::string_view token, int32_t number) { visit(token, number, false); });
  added_->for_each(visit);
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto added = added_->find(token);
  return added ? added : model_->find(token);
}

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), model_(tokenizer.model_->make_encoder()) {}

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>& tokens) {
  std::string changed;
  for (const TextSegment& outer : tokenizer_.added_->cut(text)) {
    if (outer.token) {
      tokens.push_back(*outer.token);
      continue;
    }
    std::string_view segment = text.substr(outer.begin, outer.end - outer.begin);
    if (!tokenizer_.normalizer_->is_identity()) {
      changed = segment;
      tokenizer_.normalizer_->apply(changed);
      segment = changed;
    }
    for (const TextSegment& inner : tokenizer_.added_->cut_normalized(segment)) {
      const bool is_first = outer.begin == 0 && inner.begin == 0;
      if (inner.token)
        tokens.push_back(*inner.token);
      else
        encode_segment(segment.substr(inner.begin, inner.end - inner.begin), is_first, tokens);
    }
  }
}

void Tokenizer::Encoder::encode_segment(std::string_view text, bool is_first, std::vector<int32_t>& tokens) {
  TextPieces pieces;
  pieces.pieces.push_back({text, is_first});
  tokenizer_.pre_tokenizer_->split(pieces);
  for (const TextPiece& piece : pieces.pieces) model_->encode(piece.text, tokens);
}

std::optional<std::string> end_of_text_token(const Tokenizer& tokenizer) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (tokenizer.find(name)) return name;
  }
  return std::nullopt;
}

}  // namespace aliquot
