#pragma once
// How far a run has come, and what a checkpoint says of it.

#include <cstdint>
#include <optional>

#include "apps/train/spike_guard.h"
#include "sharding/state.h"

namespace aliquot {

/// The scalar that counts the sequences that all ranks have taken.
inline constexpr const char* kSequencesConsumed = "sequences_consumed";
/// The scalar that holds SpikeGuard::Statistics.
inline constexpr const char* kLossStatisticsName = "losses_seen";

/// What a run carries from step to step besides the engine's state. The same on all ranks.
struct RunState {
  int64_t sequences_consumed = 0;    // by all ranks, before the next step
  std::optional<SpikeGuard> spikes;  // of --skip-spikes
  int64_t not_finite_in_a_row = 0, spikes_in_a_row = 0;
};

/// What a checkpoint holds of it.
struct ResumePoint {
  int64_t sequences_consumed = 0;
  std::optional<SpikeGuard::Statistics> loss_statistics;  // nothing where spikes were not skipped
};

/// Reads it from a checkpoint's scalars. Throws UsageError where aliquot train did not write them, and CheckpointError,
/// naming the scalar and its value, for a value that no run can have.
ResumePoint resume_point(const State& state);

}  // namespace aliquot
