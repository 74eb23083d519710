#pragma once
// The findings of the report: ranks that are missing or late.

#include <string>
#include <vector>

#include "apps/explain/evidence.h"

namespace aliquot {

/// A collective that some ranks entered and never finished. `missing` ranks never arrived; `late` ranks arrived after
/// the waiting ranks had given up. Ranks are in the order of the group.
struct PendingCollective {
  const CollectiveRecord* collective = nullptr;
  std::vector<int> waiting, missing, late;
};

/// Returns the first pending collective of each lane of each group, and the first pending rendezvous of each group.
/// Later ones are omitted, because ranks that gave up at the first one could not reach them.
///
/// Without times, a rank is missing if its record shows that it did not issue the collective, and the ranks that issued
/// it count as waiting. A rank without a record counts as missing from the last collective that another rank issued.
///
/// Rendezvous come first, then collectives, each in the order of issue. A rendezvous counts only if ranks failed
/// because of it, or if the launcher ended all ranks.
std::vector<PendingCollective> find_pending_collectives(const Evidence& evidence);

/// Describes ranks that never arrived, ranks that arrived late, or a deadlock. Empty if no rank was waiting.
///
/// If the launcher ended every rank that wrote a record, only a rank without a record is reported as the cause. The
/// other ranks were ended in the middle of a step, so they too can be missing from a collective. If no rank without a
/// record is missing, only long waits are reported.
std::string missing_ranks_text(const Evidence& evidence);

/// A line for each straggler: a rank for which another rank waited at least 10 % of that other rank's recorded time.
/// A collective ends on all ranks at the same time, so the rank that waited least arrived last. Clocks of different
/// ranks are not compared. The line states how long the rank that waited longest did so, by the clock of that rank.
/// Simultaneous waits in two lanes count once.
std::string late_ranks_text(const Evidence& evidence);

}  // namespace aliquot
