#include "apps/options/option_table.h"

#include <algorithm>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "|") + name;
  return text;
}

// `text` in lines of at most `width` letters, each but the first after `indent` blanks.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::string result;
  size_t column = 0, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t length = end - at;
    if (column > 0 && column + 1 + length > width) {
      result += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += text.substr(at, length);
    column += length;
    at = end + 1;
  }
  return result;
}

}  // namespace

std::string text_of(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void OptionTable::heading(std::string title) { next_heading_ = std::move(title); }

void OptionTable::add(Option option) {
  std::string default_text = option.is_switch ? "" : text_of(option.get());
  entries_.push_back({std::exchange(next_heading_, {}), std::move(option), std::move(default_text)});
}

void OptionTable::count(std::string name, int64_t& value, WholeRange range, std::string meaning) {
  add({std::move(name), "N", std::move(meaning), false,
       [&value, range](std::string_view text) { value = parse_count(text, range); }, [&value] { return Json(value); }});
}

void OptionTable::count(std::string name, std::optional<int64_t>& value, WholeRange range, std::string meaning) {
  add({std::move(name), "N", std::move(meaning), false,
       [&value, range](std::string_view text) { value = parse_count(text, range); },
       [&value] { return value ? Json(*value) : Json(); }});
}

void OptionTable::bytes(std::string name, std::optional<int64_t>& value, std::string meaning) {
  add({std::move(name), "BYTES", std::move(meaning), false,
       [&value](std::string_view text) { value = parse_bytes(text); },
       [&value] { return value ? Json(*value) : Json(); }});
}

void OptionTable::real(std::string name, double& value, RealRange range, std::string meaning) {
  add({std::move(name), "X", std::move(meaning), false,
       [&value, range](std::string_view text) { value = parse_real(text, range); }, [&value] { return Json(value); }});
}

void OptionTable::real(std::string name, std::optional<double>& value, RealRange range, std::string meaning) {
  add({std::move(name), "X", std::move(meaning), false,
       [&value, range](std::string_view text) { value = parse_real(text, range); },
       [&value] { return value ? Json(*value) : Json(); }});
}

void OptionTable::choice(std::string name, std::string& value, std::vector<std::string> names, std::string meaning) {
  std::string hint = joined(names);
  add({std::move(name), std::move(hint), std::move(meaning), false,
       [&value, names = std::move(names)](std::string_view text) { value = parse_choice(text, names); },
       [&value] { return Json(value); }});
}

void OptionTable::text(std::string name, std::string hint, std::string& value, std::string meaning) {
  add({std::move(name), std::move(hint), std::move(meaning), false,
       [&value](std::string_view text) {
         if (text.empty()) throw UsageError("nothing was given: give a value.");
         value = text;
       },
       [&value] { return value.empty() ? Json() : Json(value); }});
}

void OptionTable::toggle(std::string name, bool& value, std::string meaning) {
  add({std::move(name), "", std::move(meaning), true, [&value](std::string_view text) { value = parse_switch(text); },
       [&value] { return Json(value); }});
}

void OptionTable::toggle(std::string name, std::optional<bool>& value, std::string meaning) {
  add({std::move(name), "", std::move(meaning), true, [&value](std::string_view text) { value = parse_switch(text); },
       [&value] { return value ? Json(*value) : Json(); }});
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

Json OptionTable::values() const {
  Json values = Json::object();
  for (const Entry& entry : entries_) values[entry.option.name] = entry.option.get();
  return values;
}

std::string OptionTable::help() const {
  constexpr size_t kIndent = 6, kWidth = 100;
  std::string text;
  for (const Entry& entry : entries_) {
    if (!entry.heading.empty()) text += (text.empty() ? "" : "\n") + entry.heading + "\n";
    const Option& option = entry.option;
    text += "  --" + option.name + (option.hint.empty() ? "" : " " + option.hint);
    if (!entry.default_text.empty()) text += "  (" + entry.default_text + ")";
    text += "\n" + std::string(kIndent, ' ') + wrapped(option.meaning, kWidth - kIndent, kIndent) + "\n";
  }
  return text;
}

}  // namespace aliquot
