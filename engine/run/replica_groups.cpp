#include "engine/run/replica_groups.h"

namespace aliquot {

ReplicaGroups::ReplicaGroups(World& world, int replica_count) : world_(world) {
  if (replica_count == 1) return;
  // The ranks of a replica are contiguous, so that a replica uses as few nodes as possible.
  const int ranks = world.rank_count() / replica_count;
  shard_group_ = world.communicator().split(world.rank() / ranks, world.rank());
  replicate_group_ = world.communicator().split(world.rank() % ranks, world.rank());
}

}  // namespace aliquot
