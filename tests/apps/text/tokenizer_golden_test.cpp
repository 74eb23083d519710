// Compares tokens with those of the Python package tokenizers. make_tokenizer_goldens.py wrote the files.
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/text/tokenizer.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot::test {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kFolder = ALIQUOT_TOKENIZER_GOLDENS;

const Json& goldens() {
  static const Json all = Json::parse(std::ifstream(kFolder / "golden_tokens.json"));
  return all;
}

/// The random numbers of make_tokenizer_goldens.py: splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t limit) {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % limit;
  }

 private:
  uint64_t state_;
};

std::string text_of(uint64_t index) {
  const Json& pieces = goldens()["pieces"];
  const Json& ranges = goldens()["ranges"];
  Random random(index);
  std::string text;
  for (uint64_t left = 1 + random.below(14); left > 0; --left) {
    const uint64_t kind = random.below(8);
    if (kind == 0) {
      const Json& range = ranges[random.below(ranges.size())];
      const auto first = range[0].get<uint64_t>(), last = range[1].get<uint64_t>();
      append_utf8(text, static_cast<char32_t>(first + random.below(last - first + 1)));
      continue;
    }
    const auto& piece = pieces[random.below(pieces.size())].get_ref<const std::string&>();
    for (uint64_t times = kind == 1 ? 1 + random.below(5) : 1; times > 0; --times) text += piece;
  }
  return text;
}

/// FNV-1a over the tokens as 32-bit integers; ~0 follows each list.
class TokenHash {
 public:
  void add(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) add(static_cast<uint32_t>(token));
    add(~uint32_t{0});
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  void add(uint32_t number) {
    for (int shift = 0; shift < 32; shift += 8) value_ = (value_ ^ (number >> shift & 0xff)) * 0x100000001B3u;
  }
  uint64_t value_ = 0xCBF29CE484222325u;
};

class TokenizerGoldens : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerGoldens, TokensEqualThoseOfThePackage) {
  const Json& golden = goldens()["kinds"][GetParam()];
  const auto tokenizer = Tokenizer::read(kFolder / "tokenizers" / (GetParam() + ".json"));
  Tokenizer::Encoder encoder(*tokenizer);
  const auto block = goldens()["block"].get<uint64_t>();
  uint64_t index = 0, wrong = 0;
  for (const Json& hash : golden["hashes"]) {
    const uint64_t first = index;
    TokenHash tokens_hash;
    for (; index < first + block; ++index) {
      std::vector<int32_t> tokens;
      encoder.encode(text_of(index), tokens);
      if (index < golden["first"].size()) {
        EXPECT_EQ(Json(tokens), golden["first"][index]) << "text " << index;
      }
      tokens_hash.add(tokens);
    }
    if (tokens_hash.text() == hash.get<std::string>()) continue;
    if (++wrong <= 3) ADD_FAILURE() << "the tokens of texts " << first << " to " << index - 1 << " differ";
  }
  EXPECT_EQ(wrong, 0u) << "of " << golden["hashes"].size() << " blocks";
  EXPECT_GE(index, 10000u);
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& [name, golden] : goldens()["kinds"].items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllKinds, TokenizerGoldens, testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace aliquot::test
