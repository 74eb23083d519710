#pragma once
// The groups that a plan's operations meet in.

#include <memory>

#include "sharding/world.h"

namespace aliquot {

/// The ranks of a replica share one whole model; peers, one of every replica, hold the same shard. Without replicas the
/// first are the world, and nobody has peers. Made collectively; the world must outlive it. Used from the rank's own thread.
class ReplicaGroups {
 public:
  ReplicaGroups(World& world, int replica_count);

  World& world() const { return world_; }
  Communicator& shard_group() const { return shard_group_ ? *shard_group_ : world_.communicator(); }
  /// Only with replicas.
  Communicator& replicate_group() const { return *replicate_group_; }
  /// This rank's replica, from 0; its place among the peers.
  int replica_index() const { return replicate_group_ ? replicate_group_->rank() : 0; }

 private:
  World& world_;
  std::unique_ptr<Communicator> shard_group_, replicate_group_;
};

}  // namespace aliquot
