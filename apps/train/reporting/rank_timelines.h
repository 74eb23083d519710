#pragma once
// The recorded timelines of several ranks, on one clock.

#include <cstdint>
#include <vector>

#include "apps/train/train_context.h"
#include "engine/cost/trace.h"

namespace aliquot {

enum class TimelinesOf : uint8_t { kAllRanks, kFirstRankOfEachStage };

/// Gathers timelines of the second-to-last step on rank 0, in the order of ranks. Returns an empty list on other ranks,
/// and if the run has recorded fewer than three steps. Collective. The engine must outlive the result.
std::vector<RankTrace> gather_timelines(const TrainContext& context, TimelinesOf which);

/// Sets every Timeline::begin_seconds to the number of seconds after the beginning of the first rank's timeline. Before
/// the call, it is a time on the clock of the rank's node. `nodes` has the node of each element of `ranks`.
///
/// The clocks of nodes are not synchronized. Timelines of ranks on other nodes than that of the first rank are
/// shifted, so that the norm ends at the same time on all ranks. In the norm, all ranks wait for one another.
void place_on_one_clock(std::vector<RankTrace>& ranks, const std::vector<int>& nodes);

}  // namespace aliquot
