#pragma once
// The state of a run outside the engine, and its representation in a checkpoint.

#include <cstdint>
#include <optional>

#include "apps/train/spike_guard.h"
#include "sharding/state.h"

namespace aliquot {

/// The name of the scalar with the number of sequences that all ranks have consumed.
inline constexpr const char* kSequencesConsumed = "sequences_consumed";
/// The name of the scalar with SpikeGuard::Statistics: mean, variance and count.
inline constexpr const char* kLossStatisticsName = "losses_seen";

/// The state of a run that the engine does not hold. The same on all ranks.
struct RunState {
  int64_t sequences_consumed = 0;    // how many sequences all ranks used in all steps so far
  std::optional<SpikeGuard> spikes;  // set only with --skip-spikes
  int64_t not_finite_in_a_row = 0, spikes_in_a_row = 0;
};

/// The part of RunState that a checkpoint holds.
struct ResumePoint {
  int64_t sequences_consumed = 0;
  std::optional<SpikeGuard::Statistics> loss_statistics;  // unset if the run had no --skip-spikes
};

/// Reads the scalars of a checkpoint. Throws UsageError if aliquot train did not write the checkpoint, and
/// CheckpointError, naming the scalar and its value, if a value is out of range.
ResumePoint resume_point(const State& state);

}  // namespace aliquot
