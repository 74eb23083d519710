#pragma once
// What the ranks' records show of a failure, in words.

#include <string>
#include <vector>

#include "apps/explain/evidence.h"

namespace aliquot {

/// A collective that ranks came to and never ended, and for whom they waited there; late are those who came when the others had
/// given up. Ranks are in the order of the group.
struct PendingCollective {
  const CollectiveRecord* collective = nullptr;
  std::vector<int> waiting, missing, late;
};

/// The first of each lane of each group: what lies behind it was never meant to be reached by those who gave up there. The earliest
/// issued stands first. Without times, ranks waited in what they had issued where another, by what it issued after, had not;
/// a rank that left no record is missing where another came to its end. Of meetings those that ranks ended over stand first,
/// and the others are left out, unless all were told to end.
std::vector<PendingCollective> find_pending_collectives(const Evidence& evidence);

/// Who never came to what others waited in, or came late, or waits for one another; nothing where nobody waited. Where the
/// launcher ended all ranks that left a record nobody is blamed but who left none: a rank that is ended in the middle of a
/// step has not come somewhere either. Only waits are told then that were long before.
std::string missing_ranks_text(const Evidence& evidence);

/// A line for each rank that others waited for in a part of their time that matters; nothing where there is none. Collectives end
/// for all at once, so who waited least came last: no two clocks are compared. Of several ranks that waited for it, the one that
/// waited longest is told, by its own clock; where it waited in two lanes at a time, that time counts once.
std::string late_ranks_text(const Evidence& evidence);

}  // namespace aliquot
