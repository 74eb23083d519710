#include "apps/options/deepspeed_values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/options/settings_json.h"
#include "kernels/system/error.h"

namespace aliquot {

std::string number_text(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (value.is_boolean()) return text;
  std::erase(text, '_');
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return value.is_string() ? value.get<std::string>() : text;
  if (number == std::floor(number) && std::abs(number) < 9e15) return std::to_string(static_cast<int64_t>(number));
  return exact_text(number);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void DeepspeedValues::refuse(const std::string& key, const std::string& why) const {
  throw UsageError(fmt::format("--deepspeed {}: {}: {}", file_.path, key, why));
}

const Json* DeepspeedValues::find(const std::string& key) const {
  const auto found = file_.values.find(key);
  return found == file_.values.end() || found->second == "auto" ? nullptr : &found->second;
}

bool DeepspeedValues::is_auto(const std::string& key) const {
  const auto found = file_.values.find(key);
  return found != file_.values.end() && found->second == "auto";
}

bool DeepspeedValues::has(const std::string& block) const {
  const auto at = file_.values.lower_bound(block + ".");
  return at != file_.values.end() && at->first.starts_with(block + ".");
}

double DeepspeedValues::real(const std::string& key, double default_value, RealRange range) const {
  const Json* value = find(key);
  if (value == nullptr) return default_value;
  try {
    return parse_real(number_text(*value), range);
  } catch (const UsageError& error) {
    refuse(key, error.what());
  }
}

int64_t DeepspeedValues::integer(const std::string& key, int64_t default_value) const {
  const Json* value = find(key);
  if (value == nullptr) return default_value;
  try {
    return parse_count(number_text(*value), {0, int64_t{1} << 30});
  } catch (const UsageError& error) {
    refuse(key, error.what());
  }
}

bool DeepspeedValues::flag(const std::string& key, bool default_value) const {
  const Json* value = find(key);
  if (value == nullptr) return default_value;
  if (!value->is_boolean()) refuse(key, fmt::format("invalid value {}: expected true or false.", value_text(*value)));
  return value->get<bool>();
}

std::string DeepspeedValues::word(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return "";
  if (!value->is_string()) refuse(key, fmt::format("invalid value {}: expected a string.", value_text(*value)));
  return value->get<std::string>();
}

}  // namespace aliquot
