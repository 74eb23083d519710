#include "engine/run/memory/arena.h"

#include <algorithm>

#include "engine/run/memory/aliased_pages.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

Arena::Arena(const Plan& training, const Plan& evaluation, const ReplicaGroups& groups) {
  Communicator& replica = groups.shard_group();
  const auto bytes = [&](Space space) {
    return std::max(training.schedule.bytes(space), evaluation.schedule.bytes(space));
  };
  // If one group fails to allocate, all ranks must throw. Otherwise the other groups would wait for it.
  const auto together = [&](const auto& attempt) {
    if (training.policy.replica_count == 1) return attempt();
    run_on_all_or_throw(groups.world().communicator(), attempt);
  };
  together([&] { own_ = replica.allocate(bytes(Space::kArena), Category::kArena, "arena"); });
  if (bytes(Space::kReplicateGroup) > 0)
    together(
        [&] { peers_ = groups.replicate_group().allocate(bytes(Space::kReplicateGroup), Category::kArena, "arena"); });
  const bool aliases = training.policy.check && !training.topology.has_gpus();
  if (aliases) make_aliasable(own_.local(), own_.size_bytes());
  if (!training.schedule.view) return;
  const int64_t shared = training.schedule.bytes(Space::kSharedRange);
  together([&] {
    shared_ = replica.allocate_shared(shared, shared / replica.rank_count(), Category::kArena, "parameter shards");
  });
  if (!aliases) return;
  // If ranks are threads, they have the same range at the same address, so one rank prepares it.
  if (replica.rank() == 0) make_aliasable(shared_->writable(), shared_->size_bytes());
  replica.gather_objects("aliasable");
}

}  // namespace aliquot
