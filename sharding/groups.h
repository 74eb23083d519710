#pragma once
// Agreeing on who belongs to which group.

#include <vector>

#include "sharding/comm/bootstrap.h"
#include "sharding/topology.h"

namespace aliquot {

/// One rank's group: its members, as ranks of the parent, in the group's order, and this rank's place among them.
struct RankGroup {
  int rank = 0;
  std::vector<int> members;

  /// What the members are called in messages.
  std::vector<int> global_ranks(const Bootstrap& parent) const;
};

/// Ranks of one color, ordered by key, then by rank. Collective and blocking.
RankGroup agree_on_group(Bootstrap& bootstrap, int color, int key);

/// The topology of a group of `parent`'s ranks; nodes are numbered anew.
Topology topology_of_group(const Topology& parent, const std::vector<int>& members);

}  // namespace aliquot
