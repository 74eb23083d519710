#include "apps/text/tokenizer.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// A byte-level BPE with the tokens a, b, c, a blank (U+0120), ab and abc.
Json byte_level() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5}, "merges": [["a", "b"], ["ab", "c"]]}})");
}

/// A unigram model with the tokens <unk>, a, b and ab.
Json unigram() {
  return Json::parse(R"({"model": {"type": "Unigram", "unk_id": 0,
    "vocab": [["<unk>", 0], ["a", -1], ["b", -1.5], ["ab", -2]]}})");
}

Json added_token(int number, const char* content) {
  return {{"id", number},    {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::vector<int32_t> tokens_of(const Json& file, std::string_view text) {
  const Tokenizer tokenizer(file.dump(), "t.json");
  std::vector<int32_t> tokens;
  Tokenizer::Encoder(tokenizer).encode(text, tokens);
  return tokens;
}

std::string refusal(const std::string& text) {
  try {
    const Tokenizer tokenizer(text, "t.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// The message for `file` with `value` at the JSON pointer `place`.
std::string refusal(Json file, const char* place, const Json& value) {
  file[Json::json_pointer(place)] = value;
  return refusal(file.dump());
}

using Tokens = std::vector<int32_t>;

TEST(Tokenizer, ByteLevelMergesInTheOrderOfTheList) {
  EXPECT_EQ(tokens_of(byte_level(), "abc ab"), (Tokens{5, 3, 4}));
  EXPECT_EQ(tokens_of(byte_level(), "aabcb"), (Tokens{0, 5, 1}));
  EXPECT_EQ(tokens_of(byte_level(), ""), Tokens());
  EXPECT_EQ(tokens_of(byte_level(), "axb"), (Tokens{4})) << "bytes that are not in the vocabulary have no token";
}

TEST(Tokenizer, MergesMayBeText) {
  Json file = byte_level();
  file["model"]["merges"] = {"a b", "ab c"};
  file["model"].erase("type");
  EXPECT_EQ(tokens_of(file, "abc"), (Tokens{5}));
}

TEST(Tokenizer, IgnoredMergesPreferWholePieces) {
  Json file = byte_level();
  file["model"]["vocab"]["ca"] = 6;
  EXPECT_EQ(tokens_of(file, "ca"), (Tokens{2, 0}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokens_of(file, "ca"), (Tokens{6}));
  EXPECT_EQ(tokens_of(file, "cab"), (Tokens{2, 4}));
}

TEST(Tokenizer, UnigramFindsTheBestPath) {
  EXPECT_EQ(tokens_of(unigram(), "ab"), (Tokens{3}));
  EXPECT_EQ(tokens_of(unigram(), "aab"), (Tokens{1, 3}));
  EXPECT_EQ(tokens_of(unigram(), "éüa"), (Tokens{0, 1})) << "adjacent unknown characters are one token";
}

TEST(Tokenizer, TextWithoutTokensNeedsAnUnknownToken) {
  Json file = unigram();
  file["model"]["unk_id"] = nullptr;
  EXPECT_EQ(tokens_of(file, "ab"), (Tokens{3}));
  EXPECT_THROW(tokens_of(file, "é"), UsageError);
}

TEST(Tokenizer, AddedTokensAreFoundBeforeTheModel) {
  Json file = byte_level();
  file["added_tokens"] = {added_token(6, "<s>"), added_token(7, "<s>a"), added_token(4, "ab")};
  EXPECT_EQ(tokens_of(file, "<s>b<s>ab<s"), (Tokens{6, 1, 7, 1})) << "the longest is found; < and s have no token";
  EXPECT_EQ(tokens_of(file, "abc"), (Tokens{4, 2}));
  const Tokenizer tokenizer(file.dump(), "t.json");
  EXPECT_EQ(tokenizer.vocabulary_size(), 8);
  EXPECT_EQ(tokenizer.find("<s>"), 6);
  EXPECT_EQ(tokenizer.find("abc"), 5);
  EXPECT_EQ(tokenizer.find("abcd"), std::nullopt);
}

TEST(Tokenizer, AddedTokensMayTakeWhiteSpace) {
  Json file = byte_level();
  file["added_tokens"] = {added_token(6, "<m>"), added_token(7, "<n>")};
  file["added_tokens"][0]["lstrip"] = true;
  file["added_tokens"][1]["rstrip"] = true;
  EXPECT_EQ(tokens_of(file, "a  <m> b"), (Tokens{0, 6, 3, 1}));
  EXPECT_EQ(tokens_of(file, "a <n>  \n b"), (Tokens{0, 3, 7, 1}));
  EXPECT_EQ(tokens_of(file, "<n>  <m>a"), (Tokens{7, 6, 0}));
}

TEST(Tokenizer, EndOfTextToken) {
  Json file = byte_level();
  EXPECT_EQ(end_of_text_token(Tokenizer(file.dump(), "t.json")), std::nullopt);
  file["added_tokens"] = {added_token(6, "</s>"), added_token(7, "<|end_of_text|>")};
  EXPECT_EQ(end_of_text_token(Tokenizer(file.dump(), "t.json")), "<|end_of_text|>");
}

struct Case {
  const char* place;
  Json value;
  const char* message;
};

const Case kRefusals[] = {
    {"/extra", 1, "t.json: extra is 1: this key is not supported."},
    {"/version", "2.0", "version is \"2.0\": not supported"},
    {"/truncation", {{"max_length", 5}}, "truncation is {\"max_length\":5}: not supported"},
    {"/padding", true, "padding is true: not supported"},
    {"/post_processor", {{"type", "Other"}}, "post_processor.type is \"Other\": not supported"},
    {"/normalizer", {{"type", "BertNormalizer"}}, "normalizer.type is \"BertNormalizer\": not supported"},
    {"/normalizer", {{"type", "Precompiled"}}, "normalizer.precompiled_charsmap is missing or null: expected a string"},
    {"/normalizer", {{"type", "Nmt"}, {"x", 1}}, "normalizer.x is 1: this key is not supported"},
    {"/normalizer",
     {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
     "normalizer.normalizers[0].type is \"Lowercase\": not supported"},
    {"/normalizer", {{"type", "NFC"}, {"x", 1}}, "normalizer.x is 1: this key is not supported"},
    {"/normalizer",
     {{"type", "Replace"}, {"pattern", {{"Regex", "\\w"}}}, {"content", ""}},
     "normalizer.pattern.Regex is \"\\\\w\": the escape \\w is not supported"},
    {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}, "pattern.String is \"\""},
    {"/normalizer", {{"type", "Prepend"}}, "normalizer.prepend is missing or null: expected a string"},
    {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer.type is \"Whitespace\": not supported"},
    {"/pre_tokenizer", 5, "pre_tokenizer is 5: expected an object"},
    {"/pre_tokenizer/use_regex", "yes", "pre_tokenizer.use_regex is \"yes\": expected true or false"},
    {"/pre_tokenizer",
     {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Other"}, {"invert", false}},
     "pre_tokenizer.behavior is \"Other\": not supported (only Removed, Isolated"},
    {"/pre_tokenizer",
     {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "WhitespaceSplit"}}}}},
     "pre_tokenizer.pretokenizers[1].type is \"WhitespaceSplit\": not supported after ByteLevel"},
    {"/pre_tokenizer",
     {{"type", "Metaspace"}, {"replacement", "▁▁"}},
     "replacement is \"??????\": expected one character"},
    {"/pre_tokenizer",
     {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "last"}},
     "prepend_scheme is \"last\": not supported (only always, first, never)"},
    {"/model/type", "WordPiece", "model.type is \"WordPiece\": not supported (only BPE and Unigram)"},
    {"/model/dropout", 0.1, "model.dropout is 0.1: expected null or 0"},
    {"/model/unk_token", "x", "model.unk_token is \"x\": this token is not in model.vocab"},
    {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix is \"##\": not supported"},
    {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is \"</w>\": not supported"},
    {"/model/byte_fallback", true, "model.byte_fallback is true: not supported with the pre-tokenizer ByteLevel"},
    {"/model/vocab/a", -1, "model.vocab.a is -1: expected an integer from 0 to 16777215"},
    {"/model/vocab", Json::array(), "model.vocab is []: expected an object with tokens"},
    {"/model/merges/0", {"a"}, "model.merges[0] is [\"a\"]: expected two tokens"},
    {"/model/merges/1", "a b c", "model.merges[1] is \"a b c\": expected two tokens"},
    {"/model/merges/1", {"b", "c"}, "expected both tokens and the merged token in model.vocab"},
    {"/added_tokens", {added_token(9, "x")}, "added_tokens[0].id is 9: expected 6, the next number"},
    {"/added_tokens", {added_token(6, "ab")}, "added_tokens[0].id is 6: expected 4, the number of this token"},
    {"/added_tokens", {added_token(6, "")}, "added_tokens[0].content is \"\""},
    {"/added_tokens",
     {added_token(6, "x"), added_token(7, "x")},
     "added_tokens[1].content is \"x\": this token occurs"},
};

TEST(Tokenizer, UnsupportedPartsAreRefusedWithFieldAndValue) {
  for (const Case& one : kRefusals)
    EXPECT_THAT(refusal(byte_level(), one.place, one.value), HasSubstr(one.message)) << one.place;
  Json single = added_token(6, "x");
  single["single_word"] = true;
  EXPECT_THAT(refusal(byte_level(), "/added_tokens", Json::array({single})),
              HasSubstr("added_tokens[0].single_word is true"));
}

TEST(Tokenizer, UnsupportedUnigramModelsAreRefused) {
  EXPECT_THAT(refusal(unigram(), "/model/vocab", Json::array()), HasSubstr("model.vocab is []: expected at least one"));
  EXPECT_THAT(refusal(unigram(), "/model/vocab/1", {"a"}), HasSubstr("model.vocab[1] is [\"a\"]: expected a token"));
  EXPECT_THAT(refusal(unigram(), "/model/unk_id", 4), HasSubstr("model.unk_id is 4: expected an integer from 0 to 3"));
  EXPECT_THAT(refusal(unigram(), "/model/nbest", 4), HasSubstr("model.nbest is 4: this key is not supported"));
  EXPECT_THAT(refusal(unigram(), "/pre_tokenizer", {{"type", "ByteLevel"}}), HasSubstr("not supported with"));
}

TEST(Tokenizer, InvalidJsonIsRefused) {
  EXPECT_THAT(refusal("{"), HasSubstr("t.json: it is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("t.json: it is not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("t.json: model"));
  EXPECT_THAT(refusal(R"({"model": 1, "model": 2})"), HasSubstr("the key \"model\" occurs twice"));
  EXPECT_THAT(refusal(std::string(1000, '[')), HasSubstr("t.json"));
  EXPECT_THAT(refusal(std::string("{}\0x", 4)), HasSubstr("t.json: it is not JSON"));
  EXPECT_THAT(refusal(R"({"model": {"type": "Unigram", "vocab": [["a", 1e999]]}})"),
              HasSubstr("t.json: it is not JSON"));
}

TEST(Tokenizer, FilesAreRead) {
  const std::string path = testing::TempDir() + "aliquot_tokenizer.json";
  std::ofstream(path) << byte_level().dump();
  EXPECT_EQ(Tokenizer::read(path)->vocabulary_size(), 6);
  EXPECT_EQ(Tokenizer::read(path)->sha256().size(), 64u);
  std::filesystem::remove(path);
  EXPECT_THROW(Tokenizer::read(path), UsageError);
  EXPECT_THROW(Tokenizer::read("/dev/null"), UsageError);
  EXPECT_THROW(Tokenizer::read(testing::TempDir()), UsageError);
}

}  // namespace
}  // namespace aliquot::test
