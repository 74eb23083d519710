#include "apps/options/settings_json.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "apps/options/settings_file.h"
#include "kernels/system/error.h"
#include "sharding/state_names.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

// Json::dump() is recursive, so a deeply nested value would overflow the stack.
constexpr int kMaxDepth = 16;
// ordered_json searches keys linearly, so reading an object with very many keys would take too long.
constexpr size_t kMaxKeys = 1000;

}  // namespace

Json read_settings_json(const std::string& option, const std::string& path, const std::string& hint) {
  const std::string text = read_settings_file(option, path, hint);
  const std::string source = option + " " + path;
  if (text.empty()) throw UsageError(source + ": the file is empty.");
  std::vector<std::set<std::string>> keys;  // the keys of each enclosing object, outermost first
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth)
      throw UsageError(fmt::format("{}: objects and lists are nested more than {} levels deep.", source, kMaxDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event != Json::parse_event_t::key) return true;
    if (!keys.back().insert(parsed.get<std::string>()).second)
      throw UsageError(fmt::format("{}: the key {} occurs twice: remove one.", source,
                                   printable(parsed.get<std::string>().substr(0, 80))));
    if (keys.back().size() > kMaxKeys)
      throw UsageError(fmt::format("{}: an object has more than {} keys.", source, kMaxKeys));
    return true;
  };
  try {
    Json json = Json::parse(text, check, true, true);
    if (!json.is_object()) throw UsageError(source + ": expected a JSON object.");
    return json;
  } catch (const Json::parse_error& error) {
    const auto end = static_cast<ptrdiff_t>(std::min(error.byte, text.size()));
    throw UsageError(fmt::format("{}:{}: invalid JSON: check the quotes, commas and braces.", source,
                                 std::count(text.begin(), text.begin() + end, '\n') + 1));
  } catch (const Json::out_of_range&) {
    throw UsageError(source + ": a number is too large for a double.");
  }
}

std::string value_text(const Json& value) {
  constexpr size_t kMaxBytes = 80;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

}  // namespace aliquot
