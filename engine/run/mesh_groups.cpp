#include "engine/run/mesh_groups.h"

namespace aliquot {

MeshGroups::MeshGroups(World& world, const Mesh& mesh)
    : world_(world), mesh_(mesh), coordinates_(mesh.coordinates(world.rank())) {
  for (const GroupId group : kPeerGroups) {
    if (mesh.size(group) == world.rank_count()) continue;
    const int first = mesh.members(group, world.rank()).front();
    groups_[peer_index(group)] = world.communicator().split(first, world.rank());
  }
}

Communicator& MeshGroups::at(GroupId group) const {
  if (!is_peer_group(group) || !groups_[peer_index(group)]) return world_.communicator();
  return *groups_[peer_index(group)];
}

}  // namespace aliquot
