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
  Communicator& replica() const { return replica_ ? *replica_ : world_.communicator(); }
  /// Only with replicas.
  Communicator& peers() const { return *peers_; }
  /// This rank's replica, from 0; its place among the peers.
  int replica_index() const { return peers_ ? peers_->rank() : 0; }

 private:
  World& world_;
  std::unique_ptr<Communicator> replica_, peers_;
};

}  // namespace aliquot
