#pragma once
// A table of options. The command-line parser, --help, configuration files, metrics files and the C interface all use
// it.

#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/options/values.h"

namespace aliquot {

/// The current value of an option. Empty if the option is not set and has no fixed default.
using OptionValue = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;

/// One option, which sets a variable. The default is the value of the variable at the time when the option is added.
struct Option {
  std::string name;     // without dashes
  std::string hint;     // the form of the value, for example "N" or "a|b"; empty for a switch
  std::string meaning;  // text in --help
  bool is_switch = false;
  std::function<void(std::string_view)> set;  // throws UsageError; the caller adds the name of the option
  std::function<OptionValue()> get;
};

class OptionTable {
 public:
  /// Starts a group of options with a heading in --help.
  void heading(std::string title);

  // Each of these functions adds an option that refers to `value`, which must outlive the table and must not move.
  template <typename T>
  void count(std::string name, T& value, IntegerRange range, std::string meaning) {
    bind(std::move(name), "N", value, std::move(meaning), [range](auto text) { return parse_count(text, range); });
  }
  void bytes(std::string name, std::optional<int64_t>& value, std::string meaning);
  template <typename T>
  void real(std::string name, T& value, RealRange range, std::string meaning) {
    bind(std::move(name), "X", value, std::move(meaning), [range](auto text) { return parse_real(text, range); });
  }
  /// The option takes one of `names`.
  void choice(std::string name, std::string& value, std::vector<std::string> names, std::string meaning);
  /// The option takes one of `words`, and `value` becomes its enumerator.
  template <typename E>
  void choice(std::string name, E& value, std::type_identity_t<EnumNames<E>> words, std::string meaning);
  template <typename E>
  void choice(std::string name, std::optional<E>& value, std::type_identity_t<EnumNames<E>> words, std::string meaning);
  void text(std::string name, std::string hint, std::string& value, std::string meaning);
  /// A switch: "--name", "--name on" or "--name off".
  template <typename T>
  void toggle(std::string name, T& value, std::string meaning) {
    bind(std::move(name), "", value, std::move(meaning), parse_switch);
  }
  void add(Option option);
  /// Adds options of another table. They refer to the same variables.
  void add(const OptionTable& other, std::initializer_list<std::string_view> names);
  /// Adds one option of another table, with `meaning` as its text in --help.
  void add(const OptionTable& other, std::string_view name, std::string meaning);

  struct Entry {
    std::string heading;  // heading of the group that begins with this option; else empty
    Option option;
    OptionValue default_value;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Option* find(std::string_view name) const;
  std::vector<std::string> names() const;

 private:
  template <typename T>
  static OptionValue shown(const T& value) {
    if constexpr (std::integral<T> && !std::same_as<T, bool>)
      return static_cast<int64_t>(value);
    else
      return value;
  }
  template <typename T>
  static OptionValue shown(const std::optional<T>& value) {
    return value ? shown(*value) : OptionValue();
  }
  template <typename T>
  static T& assign(T& value, const auto& parsed) {
    return value = static_cast<T>(parsed);
  }
  template <typename T>
  static std::optional<T>& assign(std::optional<T>& value, const auto& parsed) {
    return value = static_cast<T>(parsed);
  }
  template <typename T>
  void bind(std::string name, std::string hint, T& value, std::string meaning, auto parse) {
    const bool is_switch = hint.empty();
    add({std::move(name), std::move(hint), std::move(meaning), is_switch,
         [&value, parse](std::string_view text) { assign(value, parse(text)); }, [&value] { return shown(value); }});
  }

  std::vector<Entry> entries_;
  std::string next_heading_;
};

/// Returns the names with "|" between them, for example "a|b|c".
std::string joined(const std::vector<std::string>& names);

template <typename E>
void OptionTable::choice(std::string name, E& value, std::type_identity_t<EnumNames<E>> words, std::string meaning) {
  add({std::move(name), joined(names_of(words)), std::move(meaning), false,
       [&value, words](std::string_view text) { value = parse_enum(text, words); },
       [&value, words]() -> OptionValue { return std::string(enum_name(words, value)); }});
}

template <typename E>
void OptionTable::choice(std::string name, std::optional<E>& value, std::type_identity_t<EnumNames<E>> words,
                         std::string meaning) {
  add({std::move(name), joined(names_of(words)), std::move(meaning), false,
       [&value, words](std::string_view text) { value = parse_enum(text, words); },
       [&value, words] { return value ? OptionValue(std::string(enum_name(words, *value))) : OptionValue(); }});
}

}  // namespace aliquot
