#pragma once
// The communicators of this rank's shard group and replicate group.

#include <memory>

#include "sharding/world.h"

namespace aliquot {

/// The shard group has the ranks of one replica. The replicate group has one rank of each replica, and all its ranks
/// hold the same shard. With a single replica, the shard group is the world. Construction is collective.
/// The world must outlive it. Used from the rank's own thread.
class ReplicaGroups {
 public:
  ReplicaGroups(World& world, int replica_count);

  World& world() const { return world_; }
  Communicator& shard_group() const { return shard_group_ ? *shard_group_ : world_.communicator(); }
  /// Call only if there are several replicas.
  Communicator& replicate_group() const { return *replicate_group_; }
  /// The index of this rank's replica, which is its rank in the replicate group.
  int replica_index() const { return replicate_group_ ? replicate_group_->rank() : 0; }

 private:
  World& world_;
  std::unique_ptr<Communicator> shard_group_, replicate_group_;
};

}  // namespace aliquot
