// Formats the values of a table of options as text and JSON.
#include <nlohmann/json.hpp>

#include "apps/options/arguments.h"

namespace aliquot {
namespace {

struct ToJson {
  Json operator()(std::monostate) const { return {}; }
  Json operator()(const auto& value) const { return value; }
};

Json json_of(const OptionValue& value) { return std::visit(ToJson(), value); }

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

}  // namespace aliquot
