#pragma once
// Splitting ranks into groups.

#include <vector>

#include "sharding/comm/bootstrap.h"
#include "sharding/topology.h"

namespace aliquot {

/// The group of one rank.
struct RankGroup {
  int rank = 0;              // this rank's number in the group
  std::vector<int> members;  // ranks of the parent, by their number in the group

  /// The members' numbers in the world, for messages.
  std::vector<int> global_ranks(const Bootstrap& parent) const;
};

/// Returns the group of ranks with the same color, ordered by key, then by rank. Collective; blocks.
RankGroup agree_on_group(Bootstrap& bootstrap, int color, int key);

/// The topology of a group of ranks of `parent`. Nodes are renumbered from 0.
Topology topology_of_group(const Topology& parent, const std::vector<int>& members);

}  // namespace aliquot
