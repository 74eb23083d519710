// Formats the values of a table of options as text and JSON, and the text that --help prints.
#include <algorithm>

#include "apps/options/arguments.h"

namespace aliquot {
namespace {

struct ToJson {
  Json operator()(std::monostate) const { return {}; }
  Json operator()(const auto& value) const { return value; }
};

Json json_of(const OptionValue& value) { return std::visit(ToJson(), value); }

// Wraps `text` into lines of at most `width` characters. Indents all lines but the first by `indent` blanks.
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

std::string text_of(const OptionValue& value) { return text_of(json_of(value)); }

Json option_values(const OptionTable& table) {
  Json values = Json::object();
  for (const OptionTable::Entry& entry : table.entries()) values[entry.option.name] = json_of(entry.option.get());
  return values;
}

std::string option_help(const OptionTable& table) {
  constexpr size_t kIndent = 6, kWidth = 100;
  std::string text;
  for (const auto& [heading, option, default_value] : table.entries()) {
    if (!heading.empty()) text += (text.empty() ? "" : "\n") + heading + "\n";
    const std::string default_text = text_of(default_value);
    text += "  --" + option.name + (option.hint.empty() ? "" : " " + option.hint);
    if (!default_text.empty()) text += "  (" + default_text + ")";
    text += "\n" + std::string(kIndent, ' ') + wrapped(option.meaning, kWidth - kIndent, kIndent) + "\n";
  }
  return text;
}

}  // namespace aliquot
