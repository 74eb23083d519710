#pragma once
// The communicators of the groups of a mesh that contain this rank.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "engine/plan/mesh.h"
#include "engine/plan/verbs.h"
#include "sharding/world.h"

namespace aliquot {

/// Transfers data in one direction between two pipeline stages. Used from the rank's own thread.
class StagePair {
 public:
  explicit StagePair(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}

  Communicator& communicator() { return *ranks_; }
  /// Enqueues a transfer from or to the other rank. Work that the sender enqueues on `lane` afterwards starts only when
  /// the receiver no longer reads the sender's memory.
  void transfer(Stream& lane, const Transfers& what, bool sends, Label label);

 private:
  std::unique_ptr<Communicator> ranks_;
  std::array<uint64_t, kLaneCount> counts_{};  // transfers that this rank has enqueued on each lane
};

/// Splits the world into the groups of `mesh`. Construction is collective. The world must outlive it. Used from the
/// rank's own thread.
class MeshGroups {
 public:
  MeshGroups(World& world, const Mesh& mesh);

  World& world() const { return world_; }
  const Mesh& mesh() const { return mesh_; }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  /// The communicator of a group: kWorld, kShard, kReplica, kTensor, kPipeline or kStage. A group of all ranks has the
  /// communicator of the world. Throws FaultError if the group has one rank in a larger world, except for kShard.
  Communicator& at(GroupId group) const;
  Communicator& shard_group() const { return at(GroupId::kShard); }

  /// The directions of transfers between neighboring pipeline stages. Each direction has separate communicators. A
  /// communicator may run its operations one after another. If both directions shared one, opposite transfers could
  /// deadlock.
  static constexpr std::array kDirections{Verb::kSendActivations, Verb::kSendGradients};
  /// The two ranks that make a transfer. pair_index() is their index in `pairs_`. The rank on the earlier stage is rank
  /// 0 of their communicator. In a ring, the last stage counts as earlier than the first.
  StagePair& pair(Verb verb) const { return *pairs_[pair_index(verb)]; }
  static constexpr std::size_t kPairCount = 4;
  static constexpr std::size_t pair_index(Verb verb) {
    return (transfers_activations(verb) ? 0 : 2) + (info(verb).group == GroupId::kNextStage ? 1 : 0);
  }
  /// The communicators of all groups and pairs, in an order in which all ranks can make collective calls.
  std::vector<Communicator*> communicators() const;
  /// The rounds in which pairs of ranks make collective calls. In each round, a rank calls with at most one neighbor:
  /// the entry is the verb of pair(), or empty. Two ranks of a pair call in the same round, so no rank waits for a
  /// neighbor that waits for another rank.
  std::vector<std::optional<Verb>> pair_rounds() const;
  /// Whether this rank has a neighbor in the group kPreviousStage or kNextStage.
  bool has_neighbor(GroupId pair) const { return mesh_.members(pair, world_.rank()).size() == 2; }

 private:
  static constexpr std::array kSplitGroups{GroupId::kShard, GroupId::kReplica, GroupId::kTensor, GroupId::kPipeline,
                                           GroupId::kStage};

  void split_pairs();

  World& world_;
  Mesh mesh_;
  MeshCoordinates coordinates_;
  std::array<std::unique_ptr<Communicator>, kSplitGroups.size()> groups_;  // null if the group is the world
  std::array<std::unique_ptr<StagePair>, kPairCount> pairs_;               // see pair_index()
};

}  // namespace aliquot
