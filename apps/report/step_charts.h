#pragma once
// One step of a run from the inside.

#include <string>

#include "apps/report/report_run.h"

namespace aliquot {

/// An SVG of the bytes in use by category at each operation, one on top of the other; empty where the run kept none.
std::string step_memory_chart(const ReportRun& run);

/// An SVG of what each lane did when, in a step that was timed; empty where none was.
std::string step_lanes_chart(const ReportRun& run);

}  // namespace aliquot
