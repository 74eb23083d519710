#pragma once
// Reads the lines of a --metrics file.

#include <functional>
#include <istream>

#include "apps/metrics/metrics.h"

namespace aliquot {

/// Passes the object of each line to `accept`, in order; `accept` returns false for an object of unknown kind. Skips
/// blank lines. A run that is killed may leave a truncated line. Such a line is skipped if it is the last line, or if
/// the {"run": ...} line of a resumed run follows. Stops at the first invalid line and returns its number; returns 0 if
/// there is none.
int read_metrics_lines(std::istream& file, const std::function<bool(const Json&)>& accept);

}  // namespace aliquot
