#pragma once
// The table of the loops of all built-in rules. One source file for each instruction set instantiates it.

#include "optim/update/update_loop.h"

namespace aliquot {
namespace {

template <typename Blocks, size_t... kIndex>
consteval UpdateRuns runs_of_rules(std::index_sequence<kIndex...>) {
  return {runs_of_rule<PlainEntry<Blocks>, std::variant_alternative_t<kIndex, Rule>>()...};
}

template <typename Blocks>
constexpr UpdateRuns kBuiltInUpdateRuns = runs_of_rules<Blocks>(std::make_index_sequence<kBuiltInRules>());

}  // namespace
}  // namespace aliquot
