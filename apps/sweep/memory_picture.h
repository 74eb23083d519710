#pragma once
// Draws memory per rank against model size.

#include <optional>
#include <string>
#include <vector>

#include "apps/sweep/sweep_row.h"

namespace aliquot {

/// Returns an SVG with one panel for each number of ranks, all with the same scale. A panel has a line of planned
/// memory for each ZeRO stage, a mark for each measured run, a cross for each run that failed, and the memory limit of
/// a rank. `below` is the text under the title. Rows without a plan are not drawn.
std::string memory_picture(const std::vector<SweepRow>& rows, const std::string& below);

}  // namespace aliquot
