#pragma once
// Memory by rank and category, planned beside measured, as people read it.

#include <cstdint>
#include <span>
#include <string>

#include "apps/train/reporting/system_memory.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/ledger.h"

namespace aliquot {

/// One rank's peaks.
struct RankMemory {
  BytesByCategory planned{}, measured{};
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;  // of the sum, not the sum of peaks
  int64_t outside_bytes = 0;                                // what the system counts and the ledger does not
  int64_t system_bytes = 0;                                 // all that the system counts, at the end
  int64_t system_peak_bytes = 0;                            // the most that it counted
  RunPhase system_peak_phase = RunPhase::kStart;
  int64_t system_start_bytes = 0;  // what it counted before the run took anything
};

/// A line a rank for its plan and one for what was measured, a column for each category in use, about 100 columns wide;
/// then whether all figures agree, and the most that the system counted for a rank. Ranks beyond `most_ranks` are counted, not shown.
std::string memory_table(std::span<const RankMemory> ranks, int most_ranks = 8);

}  // namespace aliquot
