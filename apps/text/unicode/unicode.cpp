#include "apps/text/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <vector>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

#include "apps/text/unicode/unicode_tables.inc"

constexpr char32_t kCodeLimit = 0x110000;
constexpr std::string_view kCategoryNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

/// Returns the values of all code points.
std::vector<uint8_t> expanded(std::span<const uint32_t> runs) {
  std::vector<uint8_t> values(kCodeLimit);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto end = i + 1 < runs.size() ? runs[i + 1] >> 8 : uint32_t{kCodeLimit};
    std::fill(values.begin() + (runs[i] >> 8), values.begin() + end, static_cast<uint8_t>(runs[i]));
  }
  return values;
}

// Hangul syllables are composed of a leading consonant, a vowel and an optional trailing consonant.
constexpr char32_t kSyllable = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

constexpr bool is_in_range(char32_t code, char32_t first, char32_t count) {
  return code >= first && code < first + count;
}

/// The tables of the normalization forms, prepared for lookup.
class NormalizationData {
 public:
  static const NormalizationData& instance() {
    static const NormalizationData data;
    return data;
  }

  uint8_t combining_class(char32_t code) const { return classes_[code]; }

  /// Appends the full decomposition of `code` to `to`.
  void decompose(char32_t code, bool is_compatible, std::u32string& to) const {
    if (is_in_range(code, kSyllable, kSyllableCount)) return decompose_syllable(code - kSyllable, to);
    const auto found = code < 0xa0 ? decompositions_.end() : decompositions_.find(code);
    if (found == decompositions_.end() || (found->second.is_compatible && !is_compatible)) {
      to += code;
      return;
    }
    for (const uint32_t part : found->second.parts) decompose(part, is_compatible, to);
  }

  /// Returns the code point composed of two, or 0.
  char32_t compose(char32_t first, char32_t second) const {
    if (is_in_range(first, kLeading, kLeadingCount) && is_in_range(second, kVowel, kVowelCount))
      return kSyllable + ((first - kLeading) * kVowelCount + second - kVowel) * kTrailingCount;
    if (is_in_range(first, kSyllable, kSyllableCount) && (first - kSyllable) % kTrailingCount == 0 &&
        is_in_range(second, kTrailing + 1, kTrailingCount - 1))
      return first + second - kTrailing;
    const auto found = compositions_.find(uint64_t{first} << 32 | second);
    return found == compositions_.end() ? 0 : found->second;
  }

 private:
  struct Decomposition {
    bool is_compatible = false;
    std::span<const uint32_t> parts;
  };

  NormalizationData() : classes_(expanded(kCombiningClassRuns)) {
    const std::span<const uint32_t> all = kDecompositions;
    for (size_t at = 0; at < all.size();) {
      const char32_t code = all[at] >> 6;
      const size_t count = all[at] >> 1 & 31;
      const Decomposition one{(all[at] & 1) != 0, all.subspan(at + 1, count)};
      decompositions_.emplace(code, one);
      const bool is_excluded = std::ranges::binary_search(kCompositionExclusions, uint32_t{code});
      if (count == 2 && !one.is_compatible && !is_excluded)
        compositions_.emplace(uint64_t{one.parts[0]} << 32 | one.parts[1], code);
      at += 1 + count;
    }
  }

  static void decompose_syllable(char32_t index, std::u32string& to) {
    to += kLeading + index / (kVowelCount * kTrailingCount);
    to += kVowel + index / kTrailingCount % kVowelCount;
    if (index % kTrailingCount != 0) to += kTrailing + index % kTrailingCount;
  }

  std::vector<uint8_t> classes_;
  std::unordered_map<char32_t, Decomposition> decompositions_;
  std::unordered_map<uint64_t, char32_t> compositions_;
};

/// Sorts each run of code points with a combining class other than 0 by that class.
void sort_marks(const NormalizationData& data, std::u32string& codes) {
  const auto by_class = [&](char32_t a, char32_t b) { return data.combining_class(a) < data.combining_class(b); };
  for (size_t begin = 0; begin < codes.size(); ++begin) {
    size_t end = begin;
    while (end < codes.size() && data.combining_class(codes[end]) != 0) ++end;
    if (end - begin > 1)
      std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(begin), codes.begin() + static_cast<ptrdiff_t>(end),
                       by_class);
    begin = std::max(begin, end);
  }
}

/// Replaces pairs by their compositions: the last starter (a code point of class 0) with each following code point that
/// is not blocked by one of the same or a higher class between them.
std::u32string composed(const NormalizationData& data, const std::u32string& codes) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::u32string result;
  size_t starter = kNone;
  int last_class = -1;  // of the last code point after the starter; -1 if there is none
  for (const char32_t code : codes) {
    const int own_class = data.combining_class(code);
    if (starter != kNone && last_class < own_class) {
      const char32_t both = data.compose(result[starter], code);
      if (both != 0) {
        result[starter] = both;
        continue;
      }
    }
    if (own_class == 0) starter = result.size();
    last_class = own_class == 0 ? -1 : own_class;
    result += code;
  }
  return result;
}

}  // namespace

std::optional<CategorySet> category_set(std::string_view name) {
  CategorySet set = 0;
  for (size_t i = 0; 2 * i < kCategoryNames.size(); ++i) {
    const std::string_view category = kCategoryNames.substr(2 * i, 2);
    if (category == name || category.substr(0, 1) == name) set |= CategorySet{1} << i;
  }
  return set == 0 ? std::nullopt : std::optional(set);
}

GeneralCategory category_of(char32_t code) {
  static const std::vector<uint8_t> categories = expanded(kCategoryRuns);
  return static_cast<GeneralCategory>(categories[code]);
}

std::string normalized(std::string_view text, NormalizationForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return std::string(text);
  const NormalizationData& data = NormalizationData::instance();
  const bool is_compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  std::u32string codes;
  for (size_t at = 0; at < text.size();) data.decompose(next_code_point(text, at), is_compatible, codes);
  sort_marks(data, codes);
  const bool composes = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  return to_utf8(composes ? composed(data, codes) : codes);
}

}  // namespace aliquot
