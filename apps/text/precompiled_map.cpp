#include "apps/text/precompiled_map.h"

#include <algorithm>
#include <optional>

#include "apps/text/unicode/graphemes.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

std::optional<uint32_t> base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<uint32_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<uint32_t>(c - 'a' + 26);
  if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0' + 52);
  if (c == '+') return 62;
  if (c == '/') return 63;
  return std::nullopt;
}

std::optional<std::string> decoded_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t digits = text.size() - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (size_t i = 0; i < digits; ++i) {
    const auto digit = base64_digit(text[i]);
    if (!digit) return std::nullopt;
    bits = bits << 6 | *digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count));
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// A unit of the double array. The bits are those of the library Darts-clone.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & ((uint32_t{1} << 31) - 1); }
uint32_t label_of(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xff); }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & uint32_t{1} << 9) >> 6); }

}  // namespace

PrecompiledMap::PrecompiledMap(const JsonField& field) {
  constexpr size_t kUnit = 4;
  const auto bytes = decoded_base64(field.text());
  field.require(bytes.has_value(), "expected base64");
  field.require(bytes->size() >= kUnit, "the map is too short");
  const size_t size = little_endian(*bytes, 0);
  field.require(size > 0 && size % kUnit == 0 && size <= bytes->size() - kUnit, "the size of its trie is wrong");
  for (size_t at = kUnit; at < kUnit + size; at += kUnit) units_.push_back(little_endian(*bytes, at));
  replacements_ = bytes->substr(kUnit + size);
  field.require(!find_invalid_utf8(replacements_), "its replacements are not UTF-8");
}

bool PrecompiledMap::replacement_at(uint32_t index, std::string_view& replacement) const {
  const std::string_view all = replacements_;
  const bool is_within_code_point = index < all.size() && (static_cast<unsigned char>(all[index]) & 0xc0) == 0x80;
  if (index > all.size() || is_within_code_point) return false;
  replacement = all.substr(index, std::min(all.find('\0', index), all.size()) - index);
  return true;
}

bool PrecompiledMap::find(std::string_view text, std::string_view& replacement) const {
  uint32_t at = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint32_t>(static_cast<unsigned char>(c));
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return false;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (has_leaf(unit)) return at < units_.size() && replacement_at(value_of(units_[at]), replacement);
  }
  return false;
}

void PrecompiledMap::apply(std::string& text) const {
  constexpr size_t kWholeBytes = 6;
  std::string result;
  std::string_view replacement;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = grapheme_end(text, begin);
    const std::string_view cluster = std::string_view(text).substr(begin, end - begin);
    if (cluster.size() < kWholeBytes && find(cluster, replacement)) {
      result += replacement;
      continue;
    }
    for (size_t at = 0; at < cluster.size();) {
      const std::string_view code = cluster.substr(at, utf8_length(cluster[at]));
      result += find(code, replacement) ? replacement : code;
      at += code.size();
    }
  }
  text = std::move(result);
}

}  // namespace aliquot
