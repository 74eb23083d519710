#include "engine/cost/inter_node_groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/plan/schedule.h"
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
  std::set<std::pair<int, int>> shard_groups, replicate_groups,
      tensor_groups;  // the fixed coordinates of groups with ranks on node 0
  for (const int rank : stage.ranks_of_node(0)) {
    const MeshCoordinates at = mesh.coordinates(rank);
    shard_groups.insert({at.replica, at.tensor});
    replicate_groups.insert({at.shard, at.tensor});
    tensor_groups.insert({at.replica, at.shard});
  }
  const auto placement = [&](GroupId group, const MeshCoordinates& at) {
    return placement_of(stage, mesh.members(group, mesh.rank(at)));
  };
  for (const auto& [replica, tensor] : shard_groups)
    replicas.push_back(placement(GroupId::kShard, {.replica = replica, .tensor = tensor}));
  for (const auto& [replica, shard] : tensor_groups) {
    if (mesh.tensor > 1) tensors.push_back(placement(GroupId::kTensor, {.replica = replica, .shard = shard}));
  }
  tensor_groups_cross = tensor_groups_cross_nodes(stage, mesh.tensor);
  if (mesh.replica == 1) return;
  for (const auto& [shard, tensor] : replicate_groups)
    peers.push_back(placement(GroupId::kReplica, {.shard = shard, .tensor = tensor}));
}

}  // namespace aliquot
