#pragma once
// Typed access to the values of a DeepSpeed configuration.

#include <cstdint>
#include <string>
#include <utility>

#include "apps/options/deepspeed_json.h"
#include "engine/options/values.h"

namespace aliquot {

/// Formats a number as the options of Aliquot accept it: 5e8 and "1_000_000" become integers.
std::string number_text(const Json& value);
std::string lower(std::string text);

/// Each function that returns a value throws UsageError, naming file and key, if the file has a value of another type.
/// A key with the value "auto" has the default value.
class DeepspeedValues {
 public:
  explicit DeepspeedValues(DeepspeedFile file) : file_(std::move(file)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;
  /// The value of `key`; null if the file does not have the key or its value is "auto".
  const Json* find(const std::string& key) const;
  bool is_auto(const std::string& key) const;
  /// Whether the file has a key in `block`.
  bool has(const std::string& block) const;

  double real(const std::string& key, double default_value, RealRange range = {}) const;
  int64_t integer(const std::string& key, int64_t default_value) const;
  bool flag(const std::string& key, bool default_value = false) const;
  /// Returns the string at `key`, or an empty string if the file does not have the key.
  std::string word(const std::string& key) const;

 protected:
  DeepspeedFile file_;
};

}  // namespace aliquot
