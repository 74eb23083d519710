#include "checkpoint/file/manifest_json.h"

#include <set>
#include <string>
#include <vector>

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthLimit = 8;

}  // namespace

Json parse_json(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDepthLimit) throw ManifestFormatError("is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw ManifestFormatError("has a key twice in one object");
    }
    return true;
  };
  // The parser takes a NUL for the end of the text, and would never see what follows it.
  if (text.find('\0') != std::string_view::npos) throw ManifestFormatError("is not JSON");
  try {
    Json json = Json::parse(text.begin(), text.end(), check);
    if (!json.is_object()) throw ManifestFormatError("is not a JSON object");
    return json;
  } catch (const Json::parse_error&) {
    throw ManifestFormatError("is not JSON");
  }
}

int64_t json_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw ManifestFormatError("holds an integer that is too large");
  if (!value.is_number_integer()) throw ManifestFormatError("holds something else where an integer belongs");
  return value.get<int64_t>();
}

const Json& json_list(const Json& value) {
  if (!value.is_array()) throw ManifestFormatError("holds something else where a list belongs");
  return value;
}

const Json& json_object(const Json& value) {
  if (!value.is_object()) throw ManifestFormatError("holds something else where an object belongs");
  return value;
}

}  // namespace aliquot
