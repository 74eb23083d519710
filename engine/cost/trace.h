#pragma once
// A timeline as a picture.

#include <ostream>

#include "engine/plan/timeline.h"

namespace aliquot {

/// As JSON that chrome://tracing and ui.perfetto.dev open: one track a lane, one box an operation, microseconds.
void write_trace(std::ostream& out, const Plan& plan, const Timeline& timeline);

/// The same for several ranks, one process of the picture each.
void write_trace(std::ostream& out, const Plan& plan, const std::vector<Timeline>& ranks);

}  // namespace aliquot
