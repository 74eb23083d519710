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
  // For each object that encloses the current position, outermost first: its keys before that position.
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDepthLimit) throw ManifestFormatError("is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw ManifestFormatError("has a duplicate key in an object");
    }
    return true;
  };
  // The parser stops at a NUL and would accept anything after it.
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
    throw ManifestFormatError("has an integer that does not fit in 64 bits");
  if (!value.is_number_integer()) throw ManifestFormatError("has a value of the wrong type: expected an integer");
  return value.get<int64_t>();
}

const Json& json_list(const Json& value) {
  if (!value.is_array()) throw ManifestFormatError("has a value of the wrong type: expected an array");
  return value;
}

const Json& json_object(const Json& value) {
  if (!value.is_object()) throw ManifestFormatError("has a value of the wrong type: expected an object");
  return value;
}

}  // namespace aliquot
