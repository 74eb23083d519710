#pragma once
// Reads CSV files.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// The rows of a CSV text. A cell in quotes may contain commas, line breaks and doubled quotes. Skips empty lines.
std::vector<std::vector<std::string>> parse_csv(std::string_view text);

}  // namespace aliquot
