#include "apps/text/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "apps/text/models/byte_alphabet.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

Json model_of(const ByteLevelTokens& tokens) {
  std::vector<std::string> names;
  for (int byte = 0; byte < 256; ++byte)
    names.push_back(token_of_byte(static_cast<char>(static_cast<unsigned char>(byte))));
  Json merges = Json::array();
  for (const auto& [left, right] : tokens.merges) {
    const std::string &first = names[static_cast<size_t>(left)], &second = names[static_cast<size_t>(right)];
    merges.push_back({first, second});
    names.push_back(first + second);
  }
  Json vocabulary = Json::object();
  // operator[] would compare each name with all earlier ones.
  auto& entries = vocabulary.get_ref<Json::object_t&>();
  for (size_t number = 0; number < names.size(); ++number) entries.push_back({names[number], number});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json added_tokens(const ByteLevelTokens& tokens) {
  Json added = Json::array();
  if (tokens.end_of_text.empty()) return added;
  added.push_back({{"id", 256 + tokens.merges.size()},
                   {"content", tokens.end_of_text},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", false},
                   {"normalized", false},
                   {"special", true}});
  return added;
}

}  // namespace

std::string tokenizer_json(const ByteLevelTokens& tokens) {
  const Json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", tokens.splits_words}};
  const Json json{{"version", "1.0"},          {"truncation", nullptr},
                  {"padding", nullptr},        {"added_tokens", added_tokens(tokens)},
                  {"normalizer", nullptr},     {"pre_tokenizer", byte_level},
                  {"post_processor", nullptr}, {"decoder", byte_level},
                  {"model", model_of(tokens)}};
  return json.dump(1) + "\n";
}

}  // namespace aliquot
