#pragma once
// The loops of every built-in rule. Included once by the source file of each instruction set, after update_loop.h.

#include "optim/update_loop.h"

namespace aliquot {
namespace {

template <size_t... kIndex>
consteval UpdateRuns runs_of_rules(std::index_sequence<kIndex...>) {
  return {runs_of_rule<PlainEntry, std::variant_alternative_t<kIndex, Rule>>()...};
}

constexpr UpdateRuns kRuns = runs_of_rules(std::make_index_sequence<kBuiltInRules>());

}  // namespace
}  // namespace aliquot
