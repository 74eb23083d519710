#include "engine/run/memory/arena.h"

#include <algorithm>

#include "engine/run/memory/aliased_pages.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

Arena::Arena(const Plan& training, const Plan& evaluation, const MeshGroups& groups) {
  Communicator& world = groups.world().communicator();
  world_ = world.allocate(std::max(training.schedule.bytes(Space::kArena), evaluation.schedule.bytes(Space::kArena)),
                          Category::kArena, "arena");
  for (const GroupId group : kPeerGroups) {
    Communicator& ranks = groups.at(group);
    if (&ranks != &world) views_[peer_index(group)] = ranks.attach(world_, groups.mesh().members(group, world.rank()));
  }
  const bool aliases = training.policy.check && !training.topology.has_gpus();
  if (aliases) make_aliasable(world_.local(), world_.size_bytes());
  if (!training.schedule.view) return;
  Communicator& replica = groups.shard_group();
  const int64_t shared = training.schedule.bytes(Space::kSharedRange);
  const auto allocate = [&] {
    shared_ = replica.allocate_shared(shared, shared / replica.rank_count(), Category::kArena, "parameter shards");
  };
  // If one group fails to allocate, all ranks must throw. Otherwise the other groups would wait for the failed group.
  if (&replica == &world) {
    allocate();
  } else {
    run_on_all_or_throw(world, allocate);
  }
  if (!aliases) return;
  // If ranks are threads, they share one mapping of the range, so only one rank prepares it.
  if (replica.rank() == 0) make_aliasable(shared_->writable(), shared_->size_bytes());
  replica.gather_objects("aliasable");
}

}  // namespace aliquot
