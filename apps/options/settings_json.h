#pragma once
// Reads the JSON files that --machine and --deepspeed name.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace aliquot {

/// Returns the JSON object in the file. Comments are allowed. Throws UsageError if the file cannot be read, is not a
/// JSON object, has a duplicate key or a number too large for a double, or nests objects and lists more than 16 levels
/// deep. The message begins with `option` and `path`. It ends with `hint` if the file cannot be read: see
/// read_settings_file().
nlohmann::ordered_json read_settings_json(const std::string& option, const std::string& path,
                                          const std::string& hint = "");

/// The value as JSON text for a message. Long text is cut after 80 bytes.
std::string value_text(const nlohmann::ordered_json& value);

}  // namespace aliquot
