#pragma once
// Memory per rank against model size, drawn.

#include <optional>
#include <string>
#include <vector>

#include "apps/sweep/sweep_row.h"

namespace aliquot {

/// An SVG: a panel for each number of ranks, all on one scale; in it a line for each stage through what was planned, a mark
/// for each run that was measured, a cross for each that was not, and what a rank may have. `below` is said beneath the
/// title: what the runs have in common. Rows without a plan are not drawn.
std::string memory_picture(const std::vector<SweepRow>& rows, const std::string& below);

}  // namespace aliquot
