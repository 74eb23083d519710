// Tests the map of the normalizer Precompiled with a map that is made here. The goldens compare it with the package.
#include "apps/text/precompiled_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/text/unicode/utf8.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;
using Units = std::vector<uint32_t>;

constexpr uint32_t kLeaf = 1 << 8;

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

std::string bytes_of(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

std::string map_of(const Units& units, const std::string& replacements) {
  std::string bytes = bytes_of(static_cast<uint32_t>(4 * units.size()));
  for (const uint32_t unit : units) bytes += bytes_of(unit);
  return base64(bytes + replacements);
}

/// The units of a map with the one part "a", whose replacement is at `value`.
Units map_of_a(uint32_t value) {
  Units units(256);
  units['a'] = 1u << 10 | kLeaf | 'a';
  units['a' ^ 1] = value | 1u << 31;
  return units;
}

std::string applied(const std::string& map, std::string text) {
  const nlohmann::json json = map;
  const std::string file = "t.json";
  PrecompiledMap(JsonField(json, "map", file)).apply(text);
  return text;
}

std::string refusal(const std::string& map) {
  try {
    applied(map, "");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PrecompiledMap, ReplacesShortClustersAsAWhole) {
  const std::string map = map_of(map_of_a(2), std::string("x\0yz\0", 5));
  EXPECT_EQ(applied(map, "a"), "yz");
  EXPECT_EQ(applied(map, "banana"), "byznyznyz");
  EXPECT_EQ(applied(map, ""), "");
  EXPECT_EQ(applied(map, "a\u0301"), "yz");                                // three bytes: the mark is lost
  EXPECT_EQ(applied(map, "a\u0301\u0301\u0301"), "yz\u0301\u0301\u0301");  // seven bytes
  EXPECT_EQ(applied(map, std::string("\0a", 2)), std::string("\0yz", 3));
  EXPECT_EQ(applied(map_of(map_of_a(1), std::string("x\0yz", 4)), "a"), "");    // an empty replacement
  EXPECT_EQ(applied(map_of(map_of_a(2), std::string("x\0yz", 4)), "a"), "yz");  // without a NUL at the end
}

TEST(PrecompiledMap, DamagedMapsChangeNothingOrAreRefused) {
  const std::string replacements("x\0\u00e9\0", 5);
  for (const uint32_t value : {6u, 1000u, 0x7fffffffu, 3u})  // behind the end, or inside a code point
    EXPECT_EQ(applied(map_of(map_of_a(value), replacements), "a"), "a") << value;
  Units far = map_of_a(0);
  far['a'] = 0x3fffffu << 10 | 1u << 9 | kLeaf | 'a';
  EXPECT_EQ(applied(map_of(far, replacements), "a"), "a");
  far = map_of_a(0);
  far[0] = 0x3fffffu << 10 | 1u << 9;
  EXPECT_EQ(applied(map_of(far, replacements), "a"), "a");
  EXPECT_EQ(applied(map_of(Units(1), ""), "a\U0001f642"), "a\U0001f642");
  EXPECT_THAT(refusal("?"), HasSubstr("map is \"?\": expected base64"));
  EXPECT_THAT(refusal("AA?A"), HasSubstr("expected base64"));
  EXPECT_THAT(refusal(""), HasSubstr("the map is too short"));
  EXPECT_THAT(refusal("AAA="), HasSubstr("the map is too short"));
  for (const uint32_t size : {0u, 2u, 8u, 0xfffffffcu})
    EXPECT_THAT(refusal(base64(bytes_of(size) + bytes_of(0))), HasSubstr("the size of its trie is wrong")) << size;
  EXPECT_THAT(refusal(map_of(Units(1), "\xff")), HasSubstr("its replacements are not UTF-8"));
}

}  // namespace
}  // namespace aliquot::test
