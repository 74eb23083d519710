#pragma once
// The lines of --metrics, read back.

#include <functional>
#include <istream>

#include "apps/metrics/metrics.h"

namespace aliquot {

/// Hands the object of each line to `take`, in order; false from it: it is none that it knows. Left out is a line that was cut off
/// in mid-write, when the run was killed: nothing follows it, or a line {"run": ...} of the run that went on. Returns the number of
/// the first line that is anything else, and reads no further; 0: there is none.
int read_metrics_lines(std::istream& file, const std::function<bool(const Json&)>& take);

}  // namespace aliquot
