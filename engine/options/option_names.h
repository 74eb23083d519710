#pragma once
// Replaces the names of EngineOptions and WorldOptions fields in messages of the library by names of options.

#include <functional>
#include <string>
#include <string_view>

namespace aliquot {

/// Returns `message` with each "EngineOptions::field" and "WorldOptions::field" replaced by spell(option). `option` is
/// the name of the option that sets the field, such as "memory-budget". For some fields, a value follows the name:
/// "offload disk:DIR" for EngineOptions::offload_state_to.
std::string with_option_names(std::string_view message, const std::function<std::string(std::string_view)>& spell);

}  // namespace aliquot
