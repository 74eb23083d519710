#pragma once
// Suggestions for names that options have in other training programs.

#include <string>
#include <string_view>

#include "engine/options/option_table.h"

namespace aliquot {

/// Returns " Use --micro-batch or --global-batch." if options of `table` have the name `given` in DeepSpeed, Megatron,
/// torchrun, transformers or llm.c; otherwise "". `given` has no dashes in front. `prefix` precedes each name.
std::string name_in_other_tools(std::string_view given, const OptionTable& table, std::string_view prefix);

}  // namespace aliquot
