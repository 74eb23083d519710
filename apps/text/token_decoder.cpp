#include "apps/text/token_decoder.h"

#include <charconv>

#include "apps/text/models/byte_alphabet.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

// The file of a tokenizer is not trusted. Without limits, several steps Replace could fill the memory.
constexpr size_t kLongestReplacement = 64, kLongestToken = size_t{1} << 20;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    result.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  text = result.append(text, begin);
}

/// Replaces a token <0x00> to <0xFF> by its byte.
void decode_byte(std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error == std::errc() && end == token.data() + 5) token = static_cast<char>(static_cast<unsigned char>(byte));
}

/// Replaces the characters of a byte-level token by their bytes. Added tokens can have other characters.
void decode_byte_level(std::string& token) {
  if (auto bytes = bytes_of_token(token)) token = std::move(*bytes);
}

}  // namespace

TokenDecoder::TokenDecoder(const Tokenizer& tokenizer) {
  const nlohmann::json json = parse_tokenizer_json(tokenizer.json(), tokenizer.file());
  const JsonField all(json, "", tokenizer.file());
  if (const JsonField decoder = all["decoder"]; decoder.is_null())
    is_null_ = true;
  else
    add(decoder);
  tokens_.resize(static_cast<size_t>(tokenizer.vocabulary_size()));
  tokenizer.for_each([this](std::string_view token, int32_t number, bool is_special) {
    tokens_[static_cast<size_t>(number)] = is_special ? std::string_view() : token;
  });
  restart();
}

void TokenDecoder::restart() {
  is_first_ = true;
  left_to_strip_ = strip_count_;
  text_ = {};
}

void TokenDecoder::add_replace(const JsonField& field) {
  field.allow_keys({"type", "pattern", "content"});
  field["pattern"].allow_keys({"String"});
  const std::string &from = field["pattern"]["String"].text(), &to = field["content"].text();
  field["pattern"]["String"].require(!from.empty(), "expected a string that is not empty");
  field["content"].require(to.size() <= kLongestReplacement, "not supported (only up to 64 bytes)");
  steps_.emplace_back([from, to](std::string& token) { replace_all(token, from, to); });
}

void TokenDecoder::add_strip(const JsonField& field) {
  field.allow_keys({"type", "content", "start", "stop"});
  stripped_ = field["content"].text();
  field["content"].require(!stripped_.empty(), "expected a character");
  strip_count_ = field["start"].index(1 << 20);
  field["stop"].require(field["stop"].index(1 << 20) == 0, "not supported (only 0)");
}

void TokenDecoder::add_metaspace(const JsonField& field) {
  field.allow_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string& mark = field["replacement"].text();
  field["replacement"].require(!mark.empty(), "expected one character");
  const JsonField scheme = field["prepend_scheme"];
  const bool prepends = scheme.is_null() ? field["add_prefix_space"].flag(true) : scheme.text() != "never";
  if (prepends) {
    stripped_ = " ";
    strip_count_ = 1;
  }
  steps_.emplace_back([mark](std::string& token) { replace_all(token, mark, " "); });
}

void TokenDecoder::add(const JsonField& field) {
  const std::string& type = field["type"].text();
  if (type == "Sequence") {
    field.allow_keys({"type", "decoders"});
    field["decoders"].for_each([this](const JsonField& part) { add(part); });
  } else if (type == "ByteLevel") {
    steps_.emplace_back(decode_byte_level);
  } else if (type == "Replace") {
    add_replace(field);
  } else if (type == "ByteFallback") {
    steps_.emplace_back(decode_byte);
  } else if (type == "Strip") {
    add_strip(field);
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else if (type != "Fuse") {  // which joins the tokens, as append() does
    field["type"].refuse("not supported (only Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace)");
  }
}

std::string TokenDecoder::append(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= tokens_.size()) return {};
  std::string bytes = tokens_[static_cast<size_t>(token)];
  if (bytes.empty()) return {};
  for (const Step& step : steps_) {
    step(bytes);
    if (bytes.size() > kLongestToken) throw UsageError("the decoder of the tokenizer makes a token too long.");
  }
  if (is_null_ && !is_first_) bytes.insert(0, " ");
  is_first_ = false;
  while (left_to_strip_ > 0 && bytes.starts_with(stripped_)) {
    bytes.erase(0, stripped_.size());
    --left_to_strip_;
  }
  if (!bytes.empty()) left_to_strip_ = 0;
  return text_.append(bytes);
}

}  // namespace aliquot
