#pragma once
// The loops of every built-in rule, once for each instruction set.

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
