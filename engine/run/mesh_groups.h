#pragma once
// The communicators of the groups of a mesh that contain this rank.

#include <array>
#include <memory>

#include "engine/plan/mesh.h"
#include "sharding/world.h"

namespace aliquot {

/// Splits the world into the groups of `mesh`. Construction is collective. The world must outlive it. Used from the
/// rank's own thread.
class MeshGroups {
 public:
  MeshGroups(World& world, const Mesh& mesh);

  World& world() const { return world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  /// The group kWorld, kShard or kReplica. A group with all ranks is the communicator of the world.
  Communicator& at(GroupId group) const;
  Communicator& shard_group() const { return at(GroupId::kShard); }

 private:
  World& world_;
  Mesh mesh_;
  MeshCoordinates coordinates_;
  std::array<std::unique_ptr<Communicator>, kPeerGroupCount> groups_;  // null: the world
};

}  // namespace aliquot
