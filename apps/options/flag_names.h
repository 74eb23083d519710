#pragma once
// Changes messages of the library for users of the command: replaces the names of fields by flags.

#include <string>
#include <string_view>

namespace aliquot {

/// Returns `message` with each field of EngineOptions and WorldOptions replaced by the flag that sets it:
/// --memory-budget for EngineOptions::memory_budget_bytes. A field without a flag is replaced by the environment
/// variable that sets it, or by a description.
std::string with_flag_names(std::string_view message);

/// A LogSink that prints with_flag_names(message) on standard error.
void log_with_flag_names(std::string_view message) noexcept;

}  // namespace aliquot
