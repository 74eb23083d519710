#pragma once
// Translates the text of a regular expression to the steps of a SplitPattern.

#include <string_view>
#include <vector>

#include "apps/text/patterns/split_pattern.h"

namespace aliquot {

struct ParsedPattern {
  std::vector<CodeSet> sets;
  std::vector<PatternStep> steps;
};

/// Throws PatternError.
ParsedPattern parse_pattern(std::string_view pattern);

}  // namespace aliquot
