#pragma once
// Values as text: what the command, its files and the C interface accept.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace aliquot {

// Each function reads the whole text, or throws UsageError with what is wrong and what to give. The caller adds the option's name.

struct IntegerRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};
/// "4096", "7.5b" (1e9), "3m" (1e6), "12k" (1e3): whole in the end.
int64_t parse_count(std::string_view text, IntegerRange range);

/// A count, or any whole number of 64 bits.
uint64_t parse_seed(std::string_view text);

/// "1048576", "24 GiB", "1.5MB": KiB MiB GiB TiB are powers of 1024, KB MB GB TB of 1000.
int64_t parse_bytes(std::string_view text);

struct RealRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};
/// "3e-4": finite.
double parse_real(std::string_view text, RealRange range);

/// One of `names`. The refusal offers the nearest.
std::string parse_choice(std::string_view text, const std::vector<std::string>& names);

/// A value of an enumeration and its name.
template <typename E>
struct EnumName {
  std::string_view text;
  E value;
};
/// A table of words that lives as long as the program.
template <typename E>
using EnumNames = std::span<const EnumName<E>>;

template <typename E>
std::vector<std::string> names_of(EnumNames<E> words) {
  std::vector<std::string> names;
  for (const EnumName<E>& word : words) names.emplace_back(word.text);
  return names;
}

/// The value of one of `words`.
template <typename E>
E parse_enum(std::string_view text, EnumNames<E> words) {
  const std::string name = parse_choice(text, names_of(words));
  size_t at = 0;
  while (words[at].text != name) ++at;
  return words[at].value;
}

/// The word of a value; empty if the table has none.
template <typename E>
std::string_view enum_name(std::type_identity_t<EnumNames<E>> words, const E& value) {
  for (const EnumName<E>& word : words) {
    if (word.value == value) return word.text;
  }
  return {};
}

/// "1,2,4": what stands between commas, without blanks around it, each once, in order. Nothing between two is refused.
std::vector<std::string> parse_list(std::string_view text);

/// "on" or "off", and "true", "false", "yes", "no", "1", "0".
bool parse_switch(std::string_view text);

/// The shortest text that reads back to the same bits, as JSON takes it; "null" for what is not finite.
std::string exact_text(double value);
std::string exact_text(float value);

}  // namespace aliquot
