#pragma once
// Writes timelines in the trace format of browsers and Perfetto.

#include <ostream>
#include <string>

#include "engine/plan/timeline.h"

namespace aliquot {

/// Writes JSON for chrome://tracing and ui.perfetto.dev, with one track per lane and one box per operation. Times are
/// in microseconds.
void write_trace(std::ostream& out, const Plan& plan, const Timeline& timeline);

/// The timeline of a rank, and the plan of its pipeline stage, which must outlive it.
struct RankTrace {
  const Plan* plan;
  Timeline timeline;
  std::string name;  // name of the process in the trace, such as "rank 0"
};

/// Writes a trace of several ranks. Each rank is a process of the trace. The times of all ranks are on one clock:
/// see Timeline::begin_seconds.
void write_trace(std::ostream& out, const std::vector<RankTrace>& ranks);

}  // namespace aliquot
