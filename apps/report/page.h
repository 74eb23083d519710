#pragma once
// The page of one run or several.

#include <string>
#include <vector>

#include "apps/report/charts.h"

namespace aliquot {

/// What a sweep left: its drawing, and the rows of its table, the first of them names. Empty: none.
struct SweepResults {
  std::string picture;
  std::vector<std::vector<std::string>> table;
};

/// One HTML page with everything in it, well-formed as XML: nothing is fetched, no script runs.
std::string report_page(const std::vector<ReportRun>& runs, const SweepResults& sweep);

}  // namespace aliquot
