#pragma once
// Typed access to the values of a config.json. All functions throw UsageError with the file, the key and the value.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace aliquot {

// These limits exceed every known model and are low enough that sizes in bytes cannot overflow.
inline constexpr int64_t kMostLayers = 4096, kLargestWidth = int64_t{1} << 20, kLargestCount = int64_t{1} << 24;

/// `text`, shortened to 200 bytes and printable.
std::string shortened(const std::string& text);
/// The message of an exception of the JSON library without its identifier, shortened and printable.
std::string json_error_text(const std::string& message);
/// The JSON text of a value, shortened and printable.
std::string json_text(const nlohmann::ordered_json& value);

class ConfigValues {
 public:
  using Json = nlohmann::ordered_json;

  /// `json` is an object. `where` names the file. Both must outlive this object.
  ConfigValues(const Json& json, const std::string& where) : json_(json), where_(where) {}

  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void refuse(std::string_view key, const Json& value, const std::string& why) const;

  bool has(std::string_view key) const { return json_.contains(std::string(key)); }
  /// Returns the value of the key, or a JSON null if the key is missing.
  const Json& value(std::string_view key) const;

  /// Returns `value`, an integer from `least` to `most`. `key` names it in messages.
  int64_t integer(std::string_view key, const Json& value, int64_t least, int64_t most) const;
  /// Returns the value of a key that must exist.
  int64_t extent(std::string_view key, int64_t most) const;
  int64_t width(std::string_view key) const { return extent(key, kLargestWidth); }
  /// Returns `otherwise` if the key is missing or null.
  int64_t width(std::string_view key, int64_t otherwise) const { return value(key).is_null() ? otherwise : width(key); }
  double real(std::string_view key, const Json& value) const;
  bool flag(std::string_view key, bool otherwise) const;

 private:
  const Json& json_;
  const std::string& where_;
};

}  // namespace aliquot
