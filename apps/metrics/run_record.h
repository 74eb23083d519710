#pragma once
// Reads a --metrics file of aliquot train or aliquot plan.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/metrics/metrics.h"

namespace aliquot {

/// The content of a --metrics file. If the run was resumed, `run` and `done` are those of the last resumption. If a
/// step was repeated, `steps` contains only its last record.
struct RunRecord {
  std::string path;
  Json run;                      // null if the file has no {"run": ...} line
  std::vector<Json> steps;       // in the order of steps
  Json done;                     // null if the run has not finished
  Json stragglers;               // the last report, or null
  std::vector<Json> plans = {};  // the plans that aliquot plan --metrics wrote
};

/// Skips truncated lines, see read_metrics_lines(). Throws UsageError, naming the file and the line, if the file cannot
/// be read or a line is invalid.
RunRecord read_run_record(const std::string& path);

}  // namespace aliquot
