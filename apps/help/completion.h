#pragma once
// Scripts that complete the command line of `aliquot` in a shell.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/help/command_help.h"

namespace aliquot {

/// The shells that completion_script() supports.
std::vector<std::string> completion_shells();

/// The script for `shell`, which must be one of completion_shells().
std::string completion_script(std::string_view shell, std::span<const CommandHelp> commands);

}  // namespace aliquot
