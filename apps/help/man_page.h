#pragma once
// Manual pages, in the man macros of roff.

#include <span>
#include <string>
#include <string_view>

#include "apps/help/command_help.h"

namespace aliquot {

/// The page aliquot(1), which lists the commands.
std::string man_page(std::span<const CommandHelp> commands, std::string_view version);
/// The page of one command, for example aliquot-train(1).
std::string man_page(const CommandHelp& command, std::string_view version);

}  // namespace aliquot
