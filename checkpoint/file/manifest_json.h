#pragma once
// JSON from a file that is not to be trusted.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace aliquot {

/// What is wrong with a manifest: the end of a sentence that begins with its path.
struct ManifestFormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Parses; throws ManifestFormatError for text that is no JSON object, is nested deeper than a few levels, or has a key
/// twice.
nlohmann::ordered_json parse_json(std::string_view text);

/// An integer of 64 bits; throws ManifestFormatError for anything else.
int64_t json_integer(const nlohmann::ordered_json& value);

/// The value itself where it is an array, an object; throws ManifestFormatError.
const nlohmann::ordered_json& json_list(const nlohmann::ordered_json& value);
const nlohmann::ordered_json& json_object(const nlohmann::ordered_json& value);

}  // namespace aliquot
