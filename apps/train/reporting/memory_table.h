#pragma once
// The printed table of planned and measured memory by rank and category.

#include <cstdint>
#include <span>
#include <string>

#include "apps/train/reporting/system_memory.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/ledger.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {

/// The memory of one rank.
struct RankMemory {
  BytesByCategory planned{}, measured{};  // the peaks of each category
  // The peak of the sum over categories, not the sum of their peaks.
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  int64_t outside_bytes = 0;  // memory that the operating system counts and the ledger does not
  // The memory as counted by the operating system: at the end of the run, at its peak, and before the run allocates
  // memory.
  int64_t system_bytes = 0;
  int64_t system_peak_bytes = 0;
  RunPhase system_peak_phase = RunPhase::kStart;
  int64_t system_start_bytes = 0;
  // The peak of each phase that exceeded all earlier phases; 0 for all other phases.
  BytesByPhase system_bytes_by_phase{};
  // The rest is for GPUs, at the end of the run.
  int64_t held_bytes = 0;  // memory that the rank has allocated
  GpuMemoryUse gpu;
  int gpu_rank = -1;  // the first rank on the same GPU; -1: no GPU
};

/// Returns the table. Each rank has a line of planned and a line of measured bytes, with a column for each category in
/// use. Lines below the table state whether all values agree, and the highest host memory of a rank as counted by the
/// system. A line for each GPU divides its memory. Shows the first `most_ranks` ranks and the number of the others.
/// `tensor` is the number of ranks of a tensor group.
std::string memory_table(std::span<const RankMemory> ranks, int tensor = 1, int most_ranks = 8);

}  // namespace aliquot
