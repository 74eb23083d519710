#pragma once
// Parsing of option values, for the command, its configuration files and the C interface.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace aliquot {

// Each parse function accepts the complete text or throws UsageError with the invalid value and what is expected. The
// caller adds the name of the option.

struct IntegerRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};
/// Parses an integer with an optional suffix: "4096", "12k" (1e3), "3m" (1e6), "7.5b" (1e9), "1t" (1e12).
int64_t parse_count(std::string_view text, IntegerRange range);

/// Parses any unsigned 64-bit integer, or a count.
uint64_t parse_seed(std::string_view text);

/// Parses bytes: "1048576", "24 GiB", "1.5MB". KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB of 1000.
int64_t parse_bytes(std::string_view text);

struct RealRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool below_most = false;  // true: `most` is outside of the range
};
/// Parses a finite number: "3e-4".
double parse_real(std::string_view text, RealRange range);

/// Parses one of `names`. The error message suggests similar names.
std::string parse_choice(std::string_view text, const std::vector<std::string>& names);

/// An enumerator and its name.
template <typename E>
struct EnumName {
  std::string_view text;
  E value;
};
/// The names of all enumerators of an enumeration. The table must have static storage duration.
template <typename E>
using EnumNames = std::span<const EnumName<E>>;

template <typename E>
std::vector<std::string> names_of(EnumNames<E> words) {
  std::vector<std::string> names;
  for (const EnumName<E>& word : words) names.emplace_back(word.text);
  return names;
}

/// Parses the name of an enumerator.
template <typename E>
E parse_enum(std::string_view text, EnumNames<E> words) {
  const std::string name = parse_choice(text, names_of(words));
  size_t at = 0;
  while (words[at].text != name) ++at;
  return words[at].value;
}

/// Returns the name of an enumerator; empty if the table lacks it.
template <typename E>
std::string_view enum_name(std::type_identity_t<EnumNames<E>> words, const E& value) {
  for (const EnumName<E>& word : words) {
    if (word.value == value) return word.text;
  }
  return {};
}

/// Parses a list: "1,2,4". Removes blanks around items and duplicates; keeps the order. Throws if an item is empty.
std::vector<std::string> parse_list(std::string_view text);

/// Parses "on", "true", "yes", "1", and "off", "false", "no", "0".
bool parse_switch(std::string_view text);

/// Returns the shortest JSON number that reads back to the same bits; "null" if the value is not finite.
std::string exact_text(double value);
std::string exact_text(float value);

}  // namespace aliquot
