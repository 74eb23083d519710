#include "engine/run/replica_groups.h"

namespace aliquot {

ReplicaGroups::ReplicaGroups(World& world, int replica_count) : world_(world) {
  if (replica_count == 1) return;
  const int ranks = world.rank_count() / replica_count;  // contiguous: where nodes are, a replica is
  shard_group_ = world.communicator().split(world.rank() / ranks, world.rank());
  replicate_group_ = world.communicator().split(world.rank() % ranks, world.rank());
}

}  // namespace aliquot
