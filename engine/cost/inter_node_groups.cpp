#include "engine/cost/inter_node_groups.h"

#include <algorithm>
#include <set>
#include <utility>

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

InterNodeGroups::InterNodeGroups(const Topology& stage, Mesh mesh) {
  mesh.pipeline = 1;
  std::set<std::pair<int, int>> shard_groups, replicate_groups;  // the fixed coordinates of groups with ranks on node 0
  for (const int rank : stage.ranks_of_node(0)) {
    const MeshCoordinates at = mesh.coordinates(rank);
    shard_groups.insert({at.replica, at.tensor});
    replicate_groups.insert({at.shard, at.tensor});
  }
  for (const auto& [replica, tensor] : shard_groups) {
    std::vector<int> members;
    for (int shard = 0; shard < mesh.shard; ++shard)
      members.push_back(mesh.rank({.replica = replica, .shard = shard, .tensor = tensor}));
    replicas.push_back(placement_of(stage, members));
  }
  if (mesh.replica == 1) return;
  for (const auto& [shard, tensor] : replicate_groups) {
    std::vector<int> members;
    for (int replica = 0; replica < mesh.replica; ++replica)
      members.push_back(mesh.rank({.replica = replica, .shard = shard, .tensor = tensor}));
    peers.push_back(placement_of(stage, members));
  }
}

}  // namespace aliquot
