#pragma once
// The communicators of the groups of a mesh that contain this rank.

#include <array>
#include <memory>

#include "engine/plan/mesh.h"
#include "engine/plan/verbs.h"
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
  /// The group kWorld or kShard, or kStage, kReplica or kPipeline if it has several ranks; otherwise throws FaultError.
  /// A group with all ranks is the communicator of the world.
  Communicator& at(GroupId group) const;
  Communicator& shard_group() const { return at(GroupId::kShard); }

  /// The directions of transfers between neighboring pipeline stages. Each has communicators of its own, because a
  /// communicator may run its operations one after another, and opposite transfers would then wait for each other.
  static constexpr std::array kDirections{Verb::kSendActivations, Verb::kSendGradients};
  /// The communicator of the two ranks that make a transfer, and its index in all transfers' communicators. The rank on
  /// the earlier stage is rank 0. In a ring, the last stage is the earlier one of the pair with the first stage.
  Communicator& pair(Verb verb) const { return *pairs_[pair_index(verb)]; }
  static constexpr std::size_t kPairCount = 4;
  static constexpr std::size_t pair_index(Verb verb) {
    return (transfers_activations(verb) ? 0 : 2) + (info(verb).group == GroupId::kNextStage ? 1 : 0);
  }
  /// Whether this rank has a neighbor in the group kPreviousStage or kNextStage.
  bool has_neighbor(GroupId pair) const { return mesh_.members(pair, world_.rank()).size() == 2; }

 private:
  static constexpr std::array kSplitGroups{GroupId::kShard, GroupId::kReplica, GroupId::kPipeline, GroupId::kStage};

  void split_pairs();
  void split_pairs(Verb direction, bool precedes, bool follows);

  World& world_;
  Mesh mesh_;
  MeshCoordinates coordinates_;
  std::array<std::unique_ptr<Communicator>, kSplitGroups.size()> groups_;  // null: the world
  std::array<std::unique_ptr<Communicator>, kPairCount> pairs_;            // by pair_index()
};

}  // namespace aliquot
