// Learns byte-level BPE tokenizers.
#include "apps/tokenize/bpe_learner.h"

#include <gtest/gtest.h>
#include <map>

#include "apps/text/token_decoder.h"
#include "apps/text/tokenizer.h"

namespace aliquot::test {
namespace {

using Merges = std::vector<std::pair<int32_t, int32_t>>;

ByteLevelTokens learn(const std::vector<std::string>& texts, int64_t vocabulary) {
  BpeLearner learner;
  for (const std::string& text : texts) learner.add(text);
  return learner.learn(vocabulary);
}

/// The plain algorithm: counts all pairs again for each merge. Words are separated by blanks, which belong to the next
/// word.
Merges plain_merges(const std::string& text, size_t count) {
  std::vector<std::vector<int32_t>> words;
  for (size_t at = 0; at < text.size(); ++at) {
    if (at == 0 || text[at] == ' ') words.emplace_back();
    words.back().push_back(static_cast<unsigned char>(text[at]));
  }
  Merges merges;
  while (merges.size() < count) {
    std::map<std::pair<int32_t, int32_t>, int> pairs;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) ++pairs[{word[i], word[i + 1]}];
    }
    auto best = pairs.begin();
    for (auto pair = pairs.begin(); pair != pairs.end(); ++pair) {
      if (pair->second > best->second) best = pair;
    }
    if (best == pairs.end() || best->second < 2) break;
    const auto merged = static_cast<int32_t>(256 + merges.size());
    merges.push_back(best->first);
    for (auto& word : words) {
      std::vector<int32_t> now;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool is_pair = i + 1 < word.size() && std::pair(word[i], word[i + 1]) == merges.back();
        now.push_back(is_pair ? merged : word[i]);
        i += is_pair ? 1 : 0;
      }
      word = now;
    }
  }
  return merges;
}

std::string some_text(size_t words) {
  std::string text;
  uint32_t state = 12345;
  const auto draw = [&state](uint32_t limit) { return (state = state * 1664525 + 1013904223) / 65536 % limit; };
  for (size_t word = 0; word < words; ++word) {
    if (word > 0) text += ' ';
    for (uint32_t left = 1 + draw(7); left > 0; --left) text += static_cast<char>('a' + draw(4));
  }
  return text;
}

TEST(BpeLearner, MakesTheMergesOfThePlainAlgorithm) {
  for (const size_t words : {1, 2, 30, 3000}) {
    const std::string text = some_text(words);
    const Merges expected = plain_merges(text, 300);
    EXPECT_EQ(learn({text}, 257 + 300).merges, expected) << words;
    EXPECT_EQ(expected.size() == 300, words == 3000);
  }
  // A run of one letter: pairs overlap.
  EXPECT_EQ(learn({"aaaaaaaa bb aaaaa"}, 300).merges, plain_merges("aaaaaaaa bb aaaaa", 43));
}

TEST(BpeLearner, DoesNotDependOnTheOrderOfTexts) {
  const std::string a = some_text(200), b = "other words with other letters, other words";
  EXPECT_EQ(learn({a, b}, 400).merges, learn({b, a}, 400).merges);
}

TEST(BpeLearner, TheTokenizerEncodesAndDecodesAnyText) {
  const std::string text = some_text(500);
  const ByteLevelTokens learned = learn({text}, 400);
  const Tokenizer tokenizer(tokenizer_json(learned), "learned");
  EXPECT_EQ(tokenizer.vocabulary_size(), 400);
  EXPECT_EQ(tokenizer.find("<|endoftext|>"), 399);
  TokenDecoder decoder(tokenizer);
  for (const std::string& any : {text, std::string("Ünïcode 中文 🙂\n\ttabs  and blanks "), std::string("x")}) {
    std::vector<int32_t> tokens;
    Tokenizer::Encoder(tokenizer).encode(any, tokens);
    std::string decoded;
    for (const int32_t token : tokens) decoded += decoder.append(token);
    EXPECT_EQ(decoded + decoder.finish(), any);
    EXPECT_LT(tokens.size(), any == text ? text.size() / 2 : any.size() + 1);
  }
}

TEST(BpeLearner, StopsWhenNoPairRepeats) {
  const ByteLevelTokens learned = learn({"abc"}, 1000);
  EXPECT_TRUE(learned.merges.empty());
  EXPECT_EQ(Tokenizer(tokenizer_json(learned), "learned").vocabulary_size(), 257);
}

}  // namespace
}  // namespace aliquot::test
