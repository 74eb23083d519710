#pragma once
// Memory by category, planned beside measured.

#include <string>

#include "apps/report/report_run.h"

namespace aliquot {

/// An SVG: two bars a category, and two for the peak of the sum. What a run did not come to measure is left out.
std::string memory_bars(const ReportRun& run);

/// Colour of a category of memory, by its name, told apart by colour-blind eyes.
std::string_view category_colour(std::string_view category);

}  // namespace aliquot
