// Compares decoded text with that of the Python package tokenizers. make_decoder_goldens.py wrote the texts.
#include "apps/text/token_decoder.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/data/whole_file.h"
#include "apps/text/byte_tokenizer.h"
#include "apps/text/unicode/utf8.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

const std::filesystem::path kFolder = ALIQUOT_TOKENIZER_GOLDENS;

std::string tokenizer_json(const std::string& kind, const Json& decoder) {
  Json file = Json::parse(read_whole_file(kFolder / "tokenizers" / (kind + ".json"), 16));
  file["decoder"] = decoder;
  return file.dump();
}

std::string decode(TokenDecoder& decoder, const std::vector<int32_t>& tokens) {
  decoder.restart();
  std::string text;
  for (const int32_t token : tokens) {
    const std::string part = decoder.append(token);
    EXPECT_FALSE(find_invalid_utf8(part)) << "after token " << token;
    text += part;
  }
  return text + decoder.finish();
}

TEST(TokenDecoder, TextsEqualThoseOfThePackage) {
  const Json goldens = Json::parse(std::ifstream(kFolder / "golden_decoded.json"));
  ASSERT_EQ(goldens.size(), 8u);
  for (const auto& [name, golden] : goldens.items()) {
    const Tokenizer tokenizer(tokenizer_json(golden["tokenizer"], golden["decoder"]), name);
    TokenDecoder decoder(tokenizer);
    ASSERT_EQ(golden["cases"].size(), 60u);
    for (const Json& one : golden["cases"])
      EXPECT_EQ(decode(decoder, one[0]), one[1].get<std::string>()) << name << " " << one[0];
  }
}

TEST(TokenDecoder, RefusesUnknownDecoders) {
  const auto message = [](const Json& decoder) {
    const Tokenizer tokenizer(tokenizer_json("gpt2", decoder), "it.json");
    try {
      TokenDecoder refused(tokenizer);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({{"type", "CTC"}}), HasSubstr("it.json: decoder.type"));
  EXPECT_THAT(message({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 2}}), HasSubstr("decoder.stop"));
  EXPECT_EQ(message({{"type", "Fuse"}}), "");
}

/// The time is linear in the length of the text, so the limit is reached at once.
TEST(TokenDecoder, RefusesTextThatGrowsWithoutLimit) {
  const Json twice{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  Json decoder{{"type", "Sequence"}, {"decoders", Json::array()}};
  for (int i = 0; i < 64; ++i) decoder["decoders"].push_back(twice);
  const Tokenizer tokenizer(tokenizer_json("gpt2", decoder), "it.json");
  TokenDecoder growing(tokenizer);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(growing.append(*tokenizer.find("a")), UsageError);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

TEST(TokenDecoder, DecodesWhatTheByteTokenizerEncodes) {
  const Tokenizer tokenizer(byte_tokenizer_json(), "bytes");
  EXPECT_EQ(tokenizer.vocabulary_size(), 256);
  TokenDecoder decoder(tokenizer);
  std::string all;
  for (char32_t code = 0; code < 0x300; ++code) append_utf8(all, code);
  all += "中文 🙂 end";
  std::vector<int32_t> tokens;
  Tokenizer::Encoder(tokenizer).encode(all, tokens);
  ASSERT_EQ(tokens.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(tokens[i], static_cast<unsigned char>(all[i]));
  EXPECT_EQ(decode(decoder, tokens), all);
  EXPECT_EQ(decoder.append(-1) + decoder.append(256), "");
}

TEST(Utf8Stream, HoldsBackIncompleteCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.append("a\xf0\x9f"), "a");
  EXPECT_EQ(stream.append("\x99"), "");
  EXPECT_EQ(stream.append("\x82z\xc3"), "\U0001F642z");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

/// Each maximal part of a character, and each byte that cannot begin one, becomes one U+FFFD.
TEST(Utf8Stream, ReplacesInvalidBytes) {
  const std::string replacement = "\uFFFD";
  const auto all = [](std::string_view bytes) {
    Utf8Stream at_once, one_by_one;
    const std::string text = at_once.append(bytes) + at_once.finish();
    std::string parts;
    for (const char byte : bytes) parts += one_by_one.append({&byte, 1});
    EXPECT_EQ(parts + one_by_one.finish(), text);
    return text;
  };
  EXPECT_EQ(all("a\xff"
                "b"),
            "a" + replacement + "b");
  EXPECT_EQ(all("\xe4\xb8"
                "b"),
            replacement + "b");
  EXPECT_EQ(all("\xed\xa0\x80"), replacement + replacement + replacement);  // a surrogate
  EXPECT_EQ(all("\xc0\xaf"), replacement + replacement);                    // too long
  EXPECT_EQ(all("\xf4\x90\x80\x80"), replacement + replacement + replacement + replacement);
  EXPECT_EQ(all("\xf0\x9f\x99\xf0\x9f\x99\x82"), replacement + "\U0001F642");
}

}  // namespace
}  // namespace aliquot::test
