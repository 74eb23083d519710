#pragma once
// Properties and normalization forms of Unicode.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aliquot {

/// The general categories. scripts/unicode_tables.py has the same order.
enum class GeneralCategory : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
  kCn
};

/// A set of general categories, one bit for each.
using CategorySet = uint32_t;

/// The set that `name` denotes: one category such as "Lu", or all categories with one first letter, such as "L".
/// Returns nullopt if there is none.
std::optional<CategorySet> category_set(std::string_view name);

GeneralCategory category_of(char32_t code);
inline bool is_in(char32_t code, CategorySet set) { return (set >> static_cast<int>(category_of(code)) & 1) != 0; }

/// The property White_Space.
constexpr bool is_white_space(char32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

enum class NormalizationForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Returns valid UTF-8 text in the normalization form.
std::string normalized(std::string_view text, NormalizationForm form);

}  // namespace aliquot
