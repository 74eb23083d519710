#include "engine/options/option_table.h"

#include <algorithm>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "|") + name;
  return text;
}

void OptionTable::heading(std::string title) { next_heading_ = std::move(title); }

void OptionTable::add(Option option) {
  OptionValue default_value = option.is_switch ? OptionValue() : option.get();
  entries_.push_back({std::exchange(next_heading_, {}), std::move(option), std::move(default_value)});
}

void OptionTable::add(const OptionTable& other, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) add(*other.find(name));
}

void OptionTable::add(const OptionTable& other, std::string_view name, std::string meaning) {
  Option option = *other.find(name);
  option.meaning = std::move(meaning);
  add(std::move(option));
}

void OptionTable::bytes(std::string name, std::optional<int64_t>& value, std::string meaning) {
  bind(std::move(name), "BYTES", value, std::move(meaning), parse_bytes);
}

void OptionTable::choice(std::string name, std::string& value, std::vector<std::string> names, std::string meaning) {
  std::string hint = joined(names);
  bind(std::move(name), std::move(hint), value, std::move(meaning),
       [names = std::move(names)](std::string_view text) { return parse_choice(text, names); });
}

void OptionTable::text(std::string name, std::string hint, std::string& value, std::string meaning) {
  add({std::move(name), std::move(hint), std::move(meaning), false,
       [&value](std::string_view text) {
         if (text.empty()) throw UsageError("invalid value '': expected text that is not empty.");
         value = text;
       },
       [&value] { return value.empty() ? OptionValue() : OptionValue(value); }});
}

const Option* OptionTable::find(std::string_view name) const {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.option.name == name; });
  return found == entries_.end() ? nullptr : &found->option;
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.option.name);
  return names;
}

}  // namespace aliquot
