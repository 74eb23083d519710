#pragma once
// The names of options, for messages of the library, which name fields of EngineOptions and WorldOptions.

#include <functional>
#include <string>
#include <string_view>

namespace aliquot {

/// Returns `message` with each "EngineOptions::field" and "WorldOptions::field" replaced by `spell` of the option that
/// sets the field. The option is in the table of common options, except "check" for the command. A value may follow the
/// name: "offload disk:DIR" for EngineOptions::offload_state_to.
std::string with_option_names(std::string_view message, const std::function<std::string(std::string_view)>& spell);

}  // namespace aliquot
