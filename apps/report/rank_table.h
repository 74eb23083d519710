#pragma once
// What each rank did of one step.

#include "apps/report/report_run.h"

namespace aliquot {

/// A table of the run's last report of stragglers; empty where its record has none, or of one rank alone.
std::string rank_table(const ReportRun& run);

}  // namespace aliquot
