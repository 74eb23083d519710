#pragma once
// Reads configuration, machine and pass order files.

#include <string>

namespace aliquot {

/// Returns the text of the file or pipe. Throws UsageError "OPTION PATH: the file cannot be read (REASON)HINT." if
/// reading fails or the file is larger than 16 MiB. With an empty `option`, the message begins with the path.
std::string read_settings_file(const std::string& option, const std::string& path, const std::string& hint = "");

}  // namespace aliquot
