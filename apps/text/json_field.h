#pragma once
// Values of a tokenizer.json with their paths, so that each message names the field and its value.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace aliquot {

/// A value of a JSON file. All functions throw UsageError with the file, the path of the field and its value.
class JsonField {
 public:
  /// `json` and `file` must outlive this object.
  JsonField(const nlohmann::json& json, std::string path, const std::string& file)
      : json_(&json), path_(std::move(path)), file_(&file) {}

  const nlohmann::json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  const std::string& file() const { return *file_; }
  bool is_null() const { return json_->is_null(); }

  /// The value of a key, or null if the key is missing. This value must be an object.
  JsonField operator[](std::string_view key) const;
  /// Calls visit(JsonField) for each element. This value must be an array.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    require(json_->is_array(), "expected an array");
    for (size_t i = 0; i < json_->size(); ++i)
      visit(JsonField((*json_)[i], path_ + "[" + std::to_string(i) + "]", *file_));
  }

  const std::string& text() const;
  bool flag() const;
  bool flag(bool otherwise) const { return is_null() ? otherwise : flag(); }
  /// An integer in [0, most].
  int64_t index(int64_t most) const;

  void require(bool holds, std::string_view expected) const {
    if (!holds) refuse(expected);
  }
  /// Refuses keys of an object that are not in the list.
  void allow_keys(std::initializer_list<std::string_view> keys) const;
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  const nlohmann::json* json_;
  std::string path_;
  const std::string* file_;
};

/// Parses an untrusted file. Throws UsageError if `text` is not a JSON object, is nested too deeply, or has a duplicate
/// key.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& file);

}  // namespace aliquot
