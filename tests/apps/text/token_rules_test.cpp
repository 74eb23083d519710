#include "apps/text/token_rules.h"

#include <gtest/gtest.h>

#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::json;

/// A byte-level BPE in the form in which the tokenizers package writes it.
Json complete() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true},
                     {"id": 5, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "ab": 2, "abb": 3}, "merges": [["a", "b"], ["ab", "b"]]}})");
}

Json rules(const Json& file) { return token_rules(file.dump(), "t.json"); }

/// The file with `value` at the JSON pointer `place`.
Json with(const char* place, const char* value) {
  Json file = complete();
  file[Json::json_pointer(place)] = Json::parse(value);
  return file;
}

TEST(TokenRules, DoNotDependOnHowTheFileWritesThem) {
  const Json expected = rules(complete());
  EXPECT_EQ(rules(Json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<e>", "normalized": false},
                     {"id": 4, "content": "<s>", "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
    "model": {"vocab": {"abb": 3, "ab": 2, "b": 1, "a": 0}, "merges": ["a b", "ab b"]}})")),
            expected);
  for (const auto& [place, value] :
       {std::pair("/decoder", R"({"type": "Fuse"})"), std::pair("/post_processor", R"({"type": "ByteLevel"})"),
        std::pair("/added_tokens/0/special", "false"), std::pair("/pre_tokenizer/trim_offsets", "false"),
        std::pair("/model/end_of_word_suffix", R"("")"), std::pair("/model/dropout", "0.0")})
    EXPECT_EQ(rules(with(place, value)), expected) << place;
}

TEST(TokenRules, DifferIfATextCanHaveOtherTokens) {
  const Json expected = rules(complete());
  for (const auto& [place, value] :
       {std::pair("/model/vocab", R"({"a": 1, "b": 0, "ab": 2, "abb": 3})"),
        std::pair("/model/merges", R"(["ab b", "a b"])"), std::pair("/model/ignore_merges", "true"),
        std::pair("/model/byte_fallback", "true"), std::pair("/model/unk_token", R"("a")"),
        std::pair("/added_tokens/0/id", "6"), std::pair("/added_tokens/0/lstrip", "true"),
        std::pair("/added_tokens/0/normalized", "true"), std::pair("/added_tokens/0/content", R"("<t>")"),
        std::pair("/added_tokens", "[]"), std::pair("/normalizer", "null"),
        std::pair("/normalizer", R"({"type": "NFKC"})"), std::pair("/pre_tokenizer", "null"),
        std::pair("/pre_tokenizer/use_regex", "false"), std::pair("/pre_tokenizer/add_prefix_space", "false")})
    EXPECT_NE(rules(with(place, value)), expected) << place << " " << value;
}

TEST(TokenRules, MetaspaceOfEarlierVersionsHasAPrefixInsteadOfAScheme) {
  const auto of = [](const char* step) { return rules(with("/pre_tokenizer", step)); };
  const Json always = of(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true})");
  EXPECT_EQ(of(R"({"type": "Metaspace", "replacement": "_", "str_rep": "_", "add_prefix_space": true})"), always);
  EXPECT_EQ(of(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"})"),
            of(R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})"));
  EXPECT_NE(of(R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})"), always);
}

TEST(TokenRules, InvalidFilesAreRefused) {
  EXPECT_THROW(token_rules("[]", "t.json"), UsageError);
  EXPECT_THROW(token_rules("{}", "t.json"), UsageError);
  EXPECT_THROW(rules(with("/normalizer", R"(["NFC"])")), UsageError);
  EXPECT_THROW(rules(with("/model/merges", R"("a b")")), UsageError);
  EXPECT_THROW(rules(with("/added_tokens", R"([{"id": 4}])")), UsageError);
}

}  // namespace
}  // namespace aliquot::test
