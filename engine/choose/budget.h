#pragma once
// Meeting a number of bytes.

#include "engine/cost/simulate.h"

namespace aliquot {

/// Bytes that each rank's memory for the plan takes: its arena, and its part of the range that ranks share.
int64_t rank_bytes(const Plan& plan);

/// Of schedules that give the same bits as `policy`'s (what differs is how far ahead units are gathered, how many stay whole
/// after forward, whether gathers are views, and on GPUs whether the optimizer's state lies in the host's memory), the
/// fastest by `cost` that takes at most `budget_bytes` a rank; of equally fast ones the smallest. Uses are recomputed only
/// where no schedule fits without, and as few as any fits with, unless the policy names a number. Plan::choice says what was chosen and why. Throws UnavailableError, with the smallest
/// budget that could be met, when none fits; else as plan().
Plan plan_within(int64_t budget_bytes, const ModelSpec& model, const Policy& policy, const Topology& topology,
                 const CostModel& cost);

}  // namespace aliquot
