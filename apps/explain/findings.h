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

/// The first pending collective of each lane of each group, and the first pending rendezvous of each group, in the
/// order of issue. Ranks that gave up there could not reach later ones.
///
/// Without times, a rank is missing if its record shows that it did not issue the collective, and the ranks that issued
/// it count as waiting. A rank without a record is missing from the last collective that another rank issued.
///
/// Rendezvous come first. A rendezvous counts only if ranks failed because of it, or if the launcher ended all ranks.
std::vector<PendingCollective> find_pending_collectives(const Evidence& evidence);

/// Describes ranks that never arrived, ranks that arrived late, or a deadlock. Empty if no rank was waiting. If the
/// launcher ended all ranks with a record, only ranks without a record are blamed, because a rank ended in the middle
/// of a step is missing from some collective too. Otherwise only waits that were already long are reported.
std::string missing_ranks_text(const Evidence& evidence);

/// A line for each straggler: a rank for which another waited at least 10 % of its recorded time. Collectives end on
/// all ranks at once, so the rank that waited least came last; clocks of different ranks are not compared. The line has
/// the time of the rank that waited longest, by its own clock. Simultaneous waits in two lanes count once.
std::string late_ranks_text(const Evidence& evidence);

}  // namespace aliquot
