#pragma once
// Files that an option names and that are read whole: configurations and machines.

#include <string>

namespace aliquot {

/// The text of the file, or of a pipe. Throws UsageError, "OPTION PATH: the file cannot be read (why)HINT.", when the system
/// refuses it, and when it is larger than any settings are.
std::string read_settings_file(const std::string& option, const std::string& path, const std::string& hint = "");

}  // namespace aliquot
