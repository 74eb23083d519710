#pragma once
// What one run of a sweep came to.

#include <cstdint>
#include <optional>
#include <string>

#include "apps/metrics/run_record.h"
#include "apps/sweep/child_process.h"
#include "apps/sweep/sweep_options.h"
#include "kernels/system/ledger.h"

namespace aliquot {

/// Bytes are of the rank with the most. What is not known, because the run did not come so far, is left out.
struct SweepRow {
  SweepCase run;
  int64_t parameters = 0;
  std::string device, status, reason;  // status: "ok", or in a word why not; reason: the sentence
  std::optional<int64_t> planned_peak_bytes, measured_peak_bytes, system_bytes;
  std::optional<double> tokens_per_second, step_seconds;
  std::optional<BytesByCategory> measured;
  std::optional<int64_t> limit_bytes;  // what the machine has for a rank; not in the table

  bool ok() const { return status == "ok"; }
  /// Every category's peak and that of the sum, to the byte.
  bool plan_matches = false;
};

/// From how the run ended, what it recorded (an empty record if nothing) and what it printed.
SweepRow row_of(const SweepCase& run, const ExitStatus& exit_status, const RunRecord& record,
                const std::string& printed);

/// The table's first line, and a line a row: commas between, quotes where they are needed.
std::string csv_header();
std::string csv_line(const SweepRow& row);

/// One line for people, while the sweep runs.
std::string text_line(const SweepRow& row);

}  // namespace aliquot
