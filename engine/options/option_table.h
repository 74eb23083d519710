#pragma once
// One table of options, from which a command's parser, its --help, its configuration file and the record of a run are made,
// and the C interface too.

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

/// Empty where nothing was given and nothing is resolved yet.
using OptionValue = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;

/// One option, bound to a variable whose value at the time is the default.
struct Option {
  std::string name;     // without dashes
  std::string hint;     // "N"; empty for a switch
  std::string meaning;  // one line or two
  bool is_switch = false;
  std::function<void(std::string_view)> set;  // throws UsageError without the option's name
  std::function<OptionValue()> get;
};

class OptionTable {
 public:
  /// What follows belongs under this heading in --help.
  void heading(std::string title);

  // Each option is bound to `value`, or to the value of an optional, which must outlive the table and stay where it is.
  template <typename T>
  void count(std::string name, T& value, IntegerRange range, std::string meaning) {
    bind(std::move(name), "N", value, std::move(meaning), [range](auto text) { return parse_count(text, range); });
  }
  void bytes(std::string name, std::optional<int64_t>& value, std::string meaning);
  template <typename T>
  void real(std::string name, T& value, RealRange range, std::string meaning) {
    bind(std::move(name), "X", value, std::move(meaning), [range](auto text) { return parse_real(text, range); });
  }
  /// One of `names`.
  void choice(std::string name, std::string& value, std::vector<std::string> names, std::string meaning);
  /// One of `words`, which are shown as words.
  template <typename E>
  void choice(std::string name, E& value, std::type_identity_t<EnumNames<E>> words, std::string meaning);
  template <typename E>
  void choice(std::string name, std::optional<E>& value, std::type_identity_t<EnumNames<E>> words, std::string meaning);
  void text(std::string name, std::string hint, std::string& value, std::string meaning);
  /// --name alone, or with on or off.
  template <typename T>
  void toggle(std::string name, T& value, std::string meaning) {
    bind(std::move(name), "", value, std::move(meaning), parse_switch);
  }
  void add(Option option);
  /// Adds options of another table, bound to the same variables.
  void add(const OptionTable& other, std::initializer_list<std::string_view> names);
  /// One of them, with a meaning of its own.
  void add(const OptionTable& other, std::string_view name, std::string meaning);

  struct Entry {
    std::string heading;  // of the group it opens; else empty
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

/// "a|b|c".
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
