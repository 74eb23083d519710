#pragma once
// Parsing of JSON from untrusted files.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace aliquot {

/// A defect of a JSON file. what() is a predicate such as "is not JSON": the code that catches it puts the path before
/// it.
struct ManifestFormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws ManifestFormatError if the text is not a JSON object, is nested more than eight levels deep, or has a
/// duplicate key.
nlohmann::ordered_json parse_json(std::string_view text);

/// Returns the value as a 64-bit integer. Throws ManifestFormatError if it is not an integer or does not fit.
int64_t json_integer(const nlohmann::ordered_json& value);

/// Both functions return `value` itself. json_list() throws ManifestFormatError if `value` is not an array, and
/// json_object() if it is not an object.
const nlohmann::ordered_json& json_list(const nlohmann::ordered_json& value);
const nlohmann::ordered_json& json_object(const nlohmann::ordered_json& value);

}  // namespace aliquot
