#include "apps/text/unicode/unicode.h"

#include <gtest/gtest.h>

#include "apps/text/unicode/graphemes.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot::test {
namespace {

using Form = NormalizationForm;

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(find_invalid_utf8(text), std::nullopt) << std::hex << uint32_t{code};
    ASSERT_EQ(text.size(), utf8_length(text[0]));
    size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), code);
    ASSERT_EQ(at, text.size());
    previous_code_point(text, at);
    ASSERT_EQ(at, 0u);
  }
}

TEST(Utf8, InvalidTextIsFound) {
  const std::string_view invalid[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc3",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "\xff",
                                      "\xe2\x82",
                                      "\xf0\x9f\x99",
                                      "\xc3\x28",
                                      "\xe2\x28\xa1"};
  for (const std::string_view bytes : invalid) {
    for (const size_t before : {0, 1, 7, 8, 9, 30}) {
      const std::string text = std::string(before, 'a') + std::string(bytes);
      EXPECT_EQ(find_invalid_utf8(text), before) << testing::PrintToString(text);
      EXPECT_EQ(find_invalid_utf8(text + "abcdefghij"), before) << testing::PrintToString(text);
    }
  }
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("aé€🙂 and more ASCII text é"), std::nullopt);
}

TEST(Unicode, CategoriesOfKnownCodePoints) {
  const auto has = [](char32_t code, std::string_view name) { return is_in(code, *category_set(name)); };
  EXPECT_TRUE(has('A', "Lu") && has('a', "Ll") && has(U'ǅ', "Lt") && has(U'ʰ', "Lm") && has(U'中', "Lo"));
  EXPECT_TRUE(has('7', "Nd") && has(U'Ⅷ', "Nl") && has(U'½', "No"));
  EXPECT_TRUE(has(0x301, "Mn") && has(0x903, "Mc") && has(0x20dd, "Me"));
  EXPECT_TRUE(has('_', "Pc") && has('!', "Po") && has('+', "Sm") && has('$', "Sc") && has(' ', "Zs"));
  EXPECT_TRUE(has(0, "Cc") && has(0xd800, "Cs") && has(0xe000, "Co") && has(0x10ffff, "Cn") && has(0x200d, "Cf"));
  for (const char32_t code : {U'A', U'ǅ', U'中'}) EXPECT_TRUE(has(code, "L") && !has(code, "N") && !has(code, "M"));
  EXPECT_EQ(category_set("Lx"), std::nullopt);
  EXPECT_EQ(category_set(""), std::nullopt);
  EXPECT_EQ(category_set("Han"), std::nullopt);
}

TEST(Unicode, WhiteSpace) {
  int count = 0;
  for (char32_t code = 0; code < 0x110000; ++code) count += is_white_space(code);
  EXPECT_EQ(count, 25);  // the property has 25 code points
  EXPECT_FALSE(is_white_space(0x200b));
  EXPECT_FALSE(is_white_space(0xfeff));
}

TEST(Unicode, NormalizationForms) {
  struct Case {
    std::string_view text, nfc, nfd, nfkc, nfkd;
  };
  const Case cases[] = {
      {"plain ASCII", "plain ASCII", "plain ASCII", "plain ASCII", "plain ASCII"},
      {"\u00e9", "\u00e9", "e\u0301", "\u00e9", "e\u0301"},
      {"\ufb01", "\ufb01", "\ufb01", "fi", "fi"},
      {"\u212b", "\u00c5", "A\u030a", "\u00c5", "A\u030a"},
      {"\uac01", "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8"},
      {"\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8"},
      {"q\u0307\u0323", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307"},
      {"\u1e9b\u0323", "\u1e9b\u0323", "\u017f\u0323\u0307", "\u1e69", "s\u0323\u0307"},
      {"\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},  // excluded from composition
      {"\u0344", "\u0308\u0301", "\u0308\u0301", "\u0308\u0301", "\u0308\u0301"},
      {"a\u0301\u0300", "\u00e1\u0300", "a\u0301\u0300", "\u00e1\u0300", "a\u0301\u0300"},
      {"\u0301a", "\u0301a", "\u0301a", "\u0301a", "\u0301a"},
      {"\u09c7\u0334\u09be", "\u09c7\u0334\u09be", "\u09c7\u0334\u09be", "\u09c7\u0334\u09be", "\u09c7\u0334\u09be"},
      {"\uf900", "\u8c48", "\u8c48", "\u8c48", "\u8c48"},
      {"\u2460\u00bd", "\u2460\u00bd", "\u2460\u00bd", "11\u20442", "11\u20442"},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(normalized(one.text, Form::kNfc), one.nfc) << one.text;
    EXPECT_EQ(normalized(one.text, Form::kNfd), one.nfd) << one.text;
    EXPECT_EQ(normalized(one.text, Form::kNfkc), one.nfkc) << one.text;
    EXPECT_EQ(normalized(one.text, Form::kNfkd), one.nfkd) << one.text;
  }
}

/// Cases of every rule of Unicode Standard Annex 29. A bar is between clusters.
TEST(Unicode, GraphemeClusters) {
  for (const std::string clusters :
       {"a|b|c", "a\u0301\u0302|b", "\r\n|\n|\r|\u0301", "a|\t|b", "\u1100\u1161\u11a8|\u1100",
        "\uac00\u11a8|\uac01\u11a8|\u1161", "\u11a8\u11a8|\u1100\uac00", "\u0915\u094d\u0937|\u0915",
        "\u0915\u0301|\u0937", "\u0915\u0903|a", "\u0600a|\u0600|\n",
        "\U0001f1e9\U0001f1ea|\U0001f1e9\U0001f1ea|\U0001f1e9",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467|\U0001f44d\U0001f3fd", "\u00a9\u200d\u00ae|a\u200d|\u00ae",
        "\u2764\ufe0f|\u2764"}) {
    std::string text = clusters, found;
    std::erase(text, '|');
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = grapheme_end(text, begin);
      found += (found.empty() ? "" : "|") + text.substr(begin, end - begin);
    }
    EXPECT_EQ(found, clusters);
  }
}

TEST(Unicode, FormsAreStable) {
  for (char32_t code = 0; code < 0x30000; ++code) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    const std::string text = to_utf8(std::u32string{U'a', code, U'\u0301', U'\u0323'});
    const std::string nfd = normalized(text, Form::kNfd), nfc = normalized(text, Form::kNfc);
    ASSERT_EQ(normalized(nfc, Form::kNfd), nfd) << std::hex << uint32_t{code};
    ASSERT_EQ(normalized(nfd, Form::kNfc), nfc) << std::hex << uint32_t{code};
    ASSERT_EQ(normalized(nfc, Form::kNfc), nfc) << std::hex << uint32_t{code};
    ASSERT_EQ(normalized(nfd, Form::kNfkc), normalized(text, Form::kNfkc)) << std::hex << uint32_t{code};
  }
}

}  // namespace
}  // namespace aliquot::test
