#pragma once
// A timeline as a picture.

#include <ostream>

#include "engine/simulate.h"

namespace aliquot {

/// As JSON that chrome://tracing and ui.perfetto.dev open: one track a lane, one box an operation, microseconds.
void write_trace(std::ostream& out, const Plan& plan, const Timeline& timeline);

}  // namespace aliquot
