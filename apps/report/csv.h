#pragma once
// A table of commas and lines, read back.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Rows of cells; quotes may hold commas, and are doubled where they are meant.
std::vector<std::vector<std::string>> parse_csv(std::string_view text);

}  // namespace aliquot
