#include "apps/models/hugging_face/values.h"

#include <fmt/format.h>

#include "checkpoint/file/tensor_entry.h"
#include "kernels/system/error.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

std::string shortened(const std::string& text) {
  constexpr size_t kShown = 200;
  return printable(text.size() > kShown ? text.substr(0, kShown) + "..." : text);
}

std::string json_error_text(const std::string& message) {
  const size_t end = message.starts_with("[json.exception.") ? message.find("] ") : std::string::npos;
  return shortened(end == std::string::npos ? message : message.substr(end + 2));
}

std::string json_text(const Json& value) {
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void ConfigValues::refuse(std::string_view key, const Json& value, const std::string& why) const {
  throw UsageError(fmt::format("{}: {} is {}: {}.", where_, key, json_text(value), why));
}

const Json& ConfigValues::value(std::string_view key) const {
  static const Json null;
  const auto found = json_.find(std::string(key));
  return found == json_.end() ? null : *found;
}

int64_t ConfigValues::integer(std::string_view key, const Json& value, int64_t least, int64_t most) const {
  const bool is_whole = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most);
  if (is_whole && value.get<int64_t>() >= least) return value.get<int64_t>();
  refuse(key, value, fmt::format("expected an integer from {} to {}", least, most));
}

int64_t ConfigValues::extent(std::string_view key, int64_t most) const {
  if (!has(key)) throw UsageError(fmt::format("{}: {} is missing.", where_, key));
  return integer(key, value(key), 1, most);
}

double ConfigValues::real(std::string_view key, const Json& value) const {
  if (!value.is_number()) refuse(key, value, "expected a number");
  return value.get<double>();
}

bool ConfigValues::flag(std::string_view key, bool otherwise) const {
  const Json& found = value(key);
  if (found.is_null()) return otherwise;
  if (!found.is_boolean()) refuse(key, found, "expected true or false");
  return found.get<bool>();
}

}  // namespace aliquot
