#pragma once
// The HTML page of aliquot report.

#include <string>
#include <vector>

#include "apps/report/charts.h"

namespace aliquot {

/// The results of aliquot sweep. Empty if there are none.
struct SweepResults {
  std::string picture;                          // SVG
  std::vector<std::vector<std::string>> table;  // rows; the first has the column names
};

/// A self-contained HTML page without scripts or external resources. It is well-formed XML.
std::string report_page(const std::vector<ReportRun>& runs, const SweepResults& sweep,
                        const std::vector<ReportPlan>& plans = {});

}  // namespace aliquot
