#pragma once
// What --metrics wrote, read back.

#include <string>
#include <vector>

#include "apps/metrics/metrics.h"

namespace aliquot {

/// One file of --metrics. Where a run was resumed, `run` and `done` are the last's, and a step that was taken twice is as it
/// was the last time.
struct RunRecord {
  std::string path;
  Json run;                 // null where the file has no such line yet
  std::vector<Json> steps;  // by step
  Json done;                // null: it did not come to its end
  Json stragglers;          // the last report; null where there is none
};

/// Lines that were cut off in mid-write are left out, as read_metrics_lines() does. Throws UsageError, naming the file and the
/// line, for what is no record of a run.
RunRecord read_run_record(const std::string& path);

}  // namespace aliquot
