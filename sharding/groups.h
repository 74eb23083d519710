#pragma once
// Functions that split ranks into groups.

#include <vector>

#include "sharding/comm/bootstrap.h"
#include "sharding/topology.h"

namespace aliquot {

/// The group to which this rank belongs.
struct RankGroup {
  int rank = 0;              // index of this rank in the group
  std::vector<int> members;  // rank of each member in the parent group; element r belongs to rank r of this group

  /// Returns the ranks of the members in the world, for messages.
  std::vector<int> global_ranks(const Bootstrap& parent) const;
};

/// Returns the group of ranks with the same color, ordered by key, then by rank. Collective; blocks.
RankGroup agree_on_group(Bootstrap& bootstrap, int color, int key);

/// Returns the topology of a group, whose `members` are ranks of `parent`. Nodes are renumbered from 0.
Topology topology_of_group(const Topology& parent, const std::vector<int>& members);

}  // namespace aliquot
