#include "engine/cost/inter_node_groups.h"

#include <algorithm>
#include <set>

#include "sharding/groups.h"

namespace aliquot {
namespace {

GroupPlacement placement_of(const Topology& world, const std::vector<int>& members) {
  const Topology group = topology_of_group(world, members);
  GroupPlacement placement{.rank_count = group.rank_count()};
  for (const int rank : members) placement.ranks_on_node += world.node_of_rank[rank] == world.node_of_rank[0];
  placement.other_nodes = group.node_count() - 1;
  placement.sums_on_node = placement.ranks_on_node > 1 && group.nodes_are_aligned();
  return placement;
}

}  // namespace

InterNodeGroups::InterNodeGroups(const Topology& world, int replica_count) {
  const int ranks = world.rank_count() / replica_count;
  // `indices`: replicas with a rank on node 0. `places`: positions of the ranks of node 0 in their replica.
  std::set<int> indices, places;
  for (const int rank : world.ranks_of_node(0)) {
    indices.insert(rank / ranks);
    places.insert(rank % ranks);
  }
  for (const int index : indices) {
    std::vector<int> members;
    for (int place = 0; place < ranks; ++place) members.push_back(index * ranks + place);
    replicas.push_back(placement_of(world, members));
  }
  if (replica_count == 1) return;
  for (const int place : places) {
    std::vector<int> members;
    for (int index = 0; index < replica_count; ++index) members.push_back(index * ranks + place);
    peers.push_back(placement_of(world, members));
  }
}

}  // namespace aliquot
