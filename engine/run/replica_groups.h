#pragma once
// The communicators of a plan: the shard group and the replicate group of this rank.

#include <memory>

#include "sharding/world.h"

namespace aliquot {

/// The shard group has the ranks of one replica. The replicate group has one rank of each replica, which hold the same
/// shard. Without replicas, the shard group is the world, and there is no replicate group. Construction is collective.
/// The world must outlive it. Used from the rank's own thread.
class ReplicaGroups {
 public:
  ReplicaGroups(World& world, int replica_count);

  World& world() const { return world_; }
  Communicator& shard_group() const { return shard_group_ ? *shard_group_ : world_.communicator(); }
  /// Call only with replicas.
  Communicator& replicate_group() const { return *replicate_group_; }
  /// The index of this rank's replica, which is its rank in the replicate group.
  int replica_index() const { return replicate_group_ ? replicate_group_->rank() : 0; }

 private:
  World& world_;
  std::unique_ptr<Communicator> shard_group_, replicate_group_;
};

}  // namespace aliquot
