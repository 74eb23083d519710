#pragma once
// The result of one run of a sweep.

#include <cstdint>
#include <optional>
#include <string>

#include "apps/metrics/run_record.h"
#include "apps/sweep/child_process.h"
#include "apps/sweep/sweep_options.h"
#include "kernels/system/ledger.h"

namespace aliquot {

/// Each byte count is the maximum over all ranks. Optional values are unset if the run ended before it recorded them.
struct SweepRow {
  SweepCase run;
  int64_t parameters = 0;
  std::string device, status, reason;  // status: "ok" or a word for the failure; reason: the message of a failed run
  std::optional<int64_t> planned_peak_bytes, measured_peak_bytes, system_bytes;
  std::optional<double> tokens_per_second, step_seconds;
  std::optional<BytesByCategory> measured;
  std::optional<int64_t> limit_bytes;  // --device-memory, or the memory of the machine per rank; not in sweep.csv

  bool ok() const { return status == "ok"; }
  /// Whether the planned peaks of all categories and of the sum equal the measured ones.
  bool plan_matches = false;
};

/// Makes the row from the exit status, the metrics (an empty record if there are none) and the printed output of a run.
SweepRow row_of(const SweepCase& run, const ExitStatus& exit_status, const RunRecord& record,
                const std::string& printed);

/// The header line and the lines of sweep.csv, with quotes where needed.
std::string csv_header();
std::string csv_line(const SweepRow& row);

/// The line that is printed when the run has ended.
std::string text_line(const SweepRow& row);

}  // namespace aliquot
