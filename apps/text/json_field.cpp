#include "apps/text/json_field.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_set>
#include <vector>

#include "apps/models/hugging_face/values.h"
#include "kernels/system/error.h"

namespace aliquot {

using Json = nlohmann::json;

namespace {

constexpr int kDepthLimit = 32;

[[noreturn]] void refuse_file(const std::string& file, std::string_view why) {
  throw UsageError(fmt::format("{}: {}.", file, why));
}

}  // namespace

JsonField JsonField::operator[](std::string_view key) const {
  static const Json null;
  require(json_->is_object(), "expected an object");
  const auto found = json_->find(std::string(key));
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return {found == json_->end() ? null : *found, path, *file_};
}

const std::string& JsonField::text() const {
  require(json_->is_string(), "expected a string");
  return json_->get_ref<const std::string&>();
}

bool JsonField::flag() const {
  require(json_->is_boolean(), "expected true or false");
  return json_->get<bool>();
}

int64_t JsonField::index(int64_t most) const {
  const bool is_valid = json_->is_number_unsigned() && json_->get<uint64_t>() <= static_cast<uint64_t>(most);
  require(is_valid, fmt::format("expected an integer from 0 to {}", most));
  return json_->get<int64_t>();
}

void JsonField::allow_keys(std::initializer_list<std::string_view> keys) const {
  require(json_->is_object(), "expected an object");
  for (const auto& [key, value] : json_->items()) {
    if (std::ranges::find(keys, key) == keys.end()) (*this)[key].refuse("this key is not supported");
  }
}

void JsonField::refuse(std::string_view why) const {
  const std::string text = shortened(json_->dump(-1, ' ', false, Json::error_handler_t::replace));
  const std::string name = path_.empty() ? "the file" : shortened(path_);
  throw UsageError(fmt::format("{}: {} {}: {}.", *file_, name, is_null() ? "is missing or null" : "is " + text, why));
}

Json parse_tokenizer_json(std::string_view text, const std::string& file) {
  // For each object that encloses the current position, outermost first: its keys before that position.
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDepthLimit) refuse_file(file, "the JSON text is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse_file(file, fmt::format("the key {} occurs twice in an object", shortened(value.dump())));
    return true;
  };
  // The parser stops at a NUL and would accept anything after it.
  if (text.find('\0') != std::string_view::npos) refuse_file(file, "it is not JSON");
  try {
    Json json = Json::parse(text.begin(), text.end(), check);
    if (!json.is_object()) refuse_file(file, "it is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    refuse_file(file, fmt::format("it is not JSON: {}", json_error_text(error.what())));
  }
}

}  // namespace aliquot
