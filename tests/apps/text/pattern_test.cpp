#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/text/patterns/split_pattern.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const SplitPattern compiled(pattern);
  std::vector<std::string> found;
  for (auto match = compiled.find(text, 0); match; match = compiled.find(text, match->end))
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

std::string refusal(std::string_view pattern) {
  try {
    const SplitPattern compiled(pattern);
  } catch (const PatternError& error) {
    return error.what();
  }
  return "";
}

TEST(SplitPattern, FirstAlternativeWins) {
  EXPECT_THAT(matches("a|ab", "abab"), ElementsAre("a", "a"));
  EXPECT_THAT(matches("ab|a", "aba"), ElementsAre("ab", "a"));
  EXPECT_THAT(matches("(?:a|ab)c", "acabc"), ElementsAre("ac", "abc"));
}

TEST(SplitPattern, RepetitionsTakeAsMuchAsPossibleAndGiveBack) {
  EXPECT_THAT(matches("a+ab", "aaab"), ElementsAre("aaab"));
  EXPECT_THAT(matches("a?a", "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(matches("a{2,3}", "aaaaaaa"), ElementsAre("aaa", "aaa"));
  EXPECT_THAT(matches("a{2}", "aaaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(matches("ba{1,}", "baaab"), ElementsAre("baaa"));
  EXPECT_THAT(matches("(?:ab)+", "ababa"), ElementsAre("abab"));
  EXPECT_THAT(matches("(ab)*c", "ababcc"), ElementsAre("ababc", "c"));
  EXPECT_THAT(matches("(?:ab)?c", "abcc"), ElementsAre("abc", "c"));
  EXPECT_THAT(matches("é+é", "ééé"), ElementsAre("ééé"));
}

TEST(SplitPattern, PossessiveRepetitionsKeepAll) {
  EXPECT_THAT(matches("a++ab", "aaab"), ElementsAre());
  EXPECT_THAT(matches("a?+a", "aa a"), ElementsAre("aa"));
  EXPECT_THAT(matches("a*+b", "aab"), ElementsAre("aab"));
}

TEST(SplitPattern, LookAhead) {
  EXPECT_THAT(matches("\\s+(?!\\S)|\\s+", "a   b "), ElementsAre("  ", " ", " "));
  EXPECT_THAT(matches("a(?=b)", "abac"), ElementsAre("a"));
  EXPECT_THAT(matches("(?!ab)[a-z]+", "abc"), ElementsAre("bc"));
}

TEST(SplitPattern, Sets) {
  EXPECT_THAT(matches("[^\\s\\p{L}]+", "ab 12,中!"), ElementsAre("12,", "!"));
  EXPECT_THAT(matches("[a-c\\-x]+", "b-xd"), ElementsAre("b-x"));
  EXPECT_THAT(matches("[-a]+", "-a-"), ElementsAre("-a-"));
  EXPECT_THAT(matches("[^\\S\\n]+", " \t\n "), ElementsAre(" \t", " "));
  EXPECT_THAT(matches("[\\P{L}]+", "ab12中"), ElementsAre("12"));
  EXPECT_THAT(matches("\\P{N}+", "ab12c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches("\\d+\\D", "12a"), ElementsAre("12a"));
  EXPECT_THAT(matches(".+", "ab\ncd"), ElementsAre("ab", "cd"));
  EXPECT_THAT(matches("\\.\\/", "a./b"), ElementsAre("./"));
}

TEST(SplitPattern, IgnoredCase) {
  EXPECT_THAT(matches("(?i:'s|'LL)", "'S'ſ'll'lL'x"), ElementsAre("'S", "'ſ", "'ll", "'lL"));
  EXPECT_THAT(matches("'(?i:[sk])", "'s'S'K's"), ElementsAre("'s", "'S", "'K", "'s"));
  EXPECT_THAT(matches("(?i:a)b", "AbAB"), ElementsAre("Ab"));
}

TEST(SplitPattern, OtherSyntaxIsRefused) {
  const std::pair<const char*, const char*> cases[] = {{"^a", "'^'"},
                                                       {"a$", "'$'"},
                                                       {"\\w+", "\\w"},
                                                       {"\\bx", "\\b"},
                                                       {"a+?", "quantifier"},
                                                       {"a{2}+", "quantifier"},
                                                       {"(?<=a)b", "'(?<='"},
                                                       {"(?i)a", "'(?i)'"},
                                                       {"\\p{Han}", "'Han'"},
                                                       {"\\pL", "\\p"},
                                                       {"[[:alpha:]]", "set in a set"},
                                                       {"[a&&b]", "set in a set"},
                                                       {"[]", "empty set"},
                                                       {"[b-a]", "ascend"},
                                                       {"(?i:é)", "not ASCII"},
                                                       {"(?i:ss)", "'ss'"},
                                                       {"(?i:Ff)", "'ff'"},
                                                       {"a*", "empty string"},
                                                       {"a|", "empty string"},
                                                       {"(?=a)", "empty string"},
                                                       {"", "empty string"},
                                                       {"(?:a?)+", "can be empty"},
                                                       {"(?:ab){2}", "group before"},
                                                       {"a{,2}", "{"},
                                                       {"a{3,2}", "{"},
                                                       {"a{0}", "{"},
                                                       {"*a", "'*'"},
                                                       {"\\xab", "\\x"},
                                                       {"(?i:[^a])", "negated"}};
  for (const auto& [pattern, part] : cases) EXPECT_THAT(refusal(pattern), HasSubstr(part)) << pattern;
  for (const char* pattern : {"(a", "a)", "[a", "\\", "(?:a", "a{", "[a-", "\\p{L"})
    EXPECT_NE(refusal(pattern), "") << pattern;
  EXPECT_THAT(refusal(std::string(100, '(') + "a" + std::string(100, ')')), HasSubstr("groups inside groups"));
}

TEST(SplitPattern, EndlessSearchIsAnError) {
  const SplitPattern pattern("(?:a+)+b");
  const std::string text(64, 'a');
  EXPECT_THROW(pattern.find(text, 0), UsageError);
}

}  // namespace
}  // namespace aliquot::test
