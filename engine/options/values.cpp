#include "engine/options/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "engine/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& expected) {
  throw UsageError("invalid value '" + std::string(text) + "': expected " + expected + ".");
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

struct Suffix {
  std::string_view name;
  double factor;
};
constexpr std::array kCountSuffixes{Suffix{"k", 1e3}, Suffix{"m", 1e6}, Suffix{"b", 1e9}, Suffix{"t", 1e12}};
constexpr std::array kByteSuffixes{Suffix{"B", 1},          Suffix{"KB", 1e3},          Suffix{"MB", 1e6},
                                   Suffix{"GB", 1e9},       Suffix{"TB", 1e12},         Suffix{"KiB", 1024.},
                                   Suffix{"MiB", 1048576.}, Suffix{"GiB", 1073741824.}, Suffix{"TiB", 1099511627776.}};

bool same_letters(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if ((a[i] | 0x20) != (b[i] | 0x20)) return false;
  }
  return true;
}

// Parses a number with an optional suffix. Integers without a suffix are exact.
template <size_t N>
int64_t parse_scaled(std::string_view given, const std::array<Suffix, N>& suffixes, const std::string& expected) {
  const std::string_view text = trim(given);
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc() && end == text.data() + text.size()) return whole;
  double number = 0;
  const auto [rest, real_error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (real_error != std::errc()) refuse(given, expected);
  const std::string_view suffix = trim({rest, static_cast<size_t>(text.data() + text.size() - rest)});
  for (const Suffix& known : suffixes) {
    if (!same_letters(suffix, known.name)) continue;
    const double value = number * known.factor;
    // Binary rounding may make a product such as 7.3 * 1e9 slightly non-integer.
    if (std::abs(value) < 9e18 && std::abs(value - std::round(value)) <= 1e-9 * std::abs(value))
      return std::llround(value);
  }
  refuse(given, expected);
}

std::string range_text(IntegerRange range) {
  if (range.most == std::numeric_limits<int64_t>::max()) return "an integer of at least " + std::to_string(range.least);
  return "an integer from " + std::to_string(range.least) + " to " + std::to_string(range.most);
}

std::string range_text(RealRange range) {
  const bool floor = std::isfinite(range.least), ceiling = std::isfinite(range.most);
  if (floor && ceiling && range.below_most)
    return "a number of at least " + exact_text(range.least) + " and below " + exact_text(range.most);
  if (floor && ceiling) return "a number from " + exact_text(range.least) + " to " + exact_text(range.most);
  return floor ? "a number of at least " + exact_text(range.least) : "a number";
}

template <typename Real>
std::string exact(Real value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

}  // namespace

int64_t parse_count(std::string_view text, IntegerRange range) {
  const std::string what = range_text(range) + " (suffixes: k for thousands, m for millions, b for billions)";
  const int64_t value = parse_scaled(text, kCountSuffixes, what);
  if (value < range.least || value > range.most) refuse(text, range_text(range));
  return value;
}

uint64_t parse_seed(std::string_view text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc() && end == text.data() + text.size()) return seed;
  return static_cast<uint64_t>(parse_count(text, {}));
}

int64_t parse_bytes(std::string_view text) {
  const std::string what = "a number of bytes, for example 512MiB, 24GiB or 80GB";
  const int64_t value = parse_scaled(text, kByteSuffixes, what);
  if (value < 0) refuse(text, what);
  return value;
}

double parse_real(std::string_view given, RealRange range) {
  const std::string_view text = trim(given);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    refuse(given, range_text(range));
  if (value < range.least || value > range.most || (range.below_most && value == range.most))
    refuse(given, range_text(range));
  return value;
}

std::string parse_choice(std::string_view given, const std::vector<std::string>& names) {
  const std::string_view text = trim(given);
  std::string list;
  for (const std::string& name : names) {
    if (name == text) return name;
    list += (list.empty() ? "" : ", ") + name;
  }
  throw UsageError("invalid value '" + std::string(given) + "': expected one of " + list + "." +
                   did_you_mean(text, names, ""));
}

std::vector<std::string> parse_list(std::string_view given) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= given.size();) {
    const size_t end = std::min(given.find(',', at), given.size());
    const std::string item(trim(given.substr(at, end - at)));
    if (item.empty()) refuse(given, "one or several values separated by commas");
    if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(item);
    at = end + 1;
  }
  return items;
}

bool parse_switch(std::string_view given) {
  const std::string_view text = trim(given);
  for (const std::string_view on : {"on", "true", "yes", "1"}) {
    if (text == on) return true;
  }
  for (const std::string_view off : {"off", "false", "no", "0"}) {
    if (text == off) return false;
  }
  refuse(given, "on or off");
}

std::string exact_text(double value) { return exact(value); }
std::string exact_text(float value) { return exact(value); }

}  // namespace aliquot
