#include "engine/cost/inter_node_groups.h"

#include <algorithm>
#include <set>

#include "sharding/groups.h"

namespace aliquot {
namespace {

GroupPlacement placement_of(const Topology& world, const std::vector<int>& members) {
  const Topology group = subset(world, members);
  GroupPlacement meeting{.rank_count = group.rank_count()};
  for (const int rank : members) meeting.ranks_on_node += world.node_of_rank[rank] == world.node_of_rank[0];
  meeting.other_nodes = group.node_count() - 1;
  meeting.sums_on_node = meeting.ranks_on_node > 1 && group.nodes_are_aligned();
  return meeting;
}

}  // namespace

InterNodeGroups::InterNodeGroups(const Topology& world, int replica_count) {
  const int ranks = world.rank_count() / replica_count;
  std::set<int> indices, places;  // of replicas that have ranks on the first node; of those ranks in theirs
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
