#include "engine/arena.h"

#include <algorithm>

#include "engine/all_or_none.h"

namespace aliquot {

Arena::Arena(const Plan& training, const Plan& evaluation, const ReplicaGroups& groups) {
  Communicator& replica = groups.replica();
  const auto bytes = [&](Space space) {
    return std::max(training.schedule.bytes(space), evaluation.schedule.bytes(space));
  };
  // A group that cannot have its memory is not to be waited for by the others.
  const auto together = [&](const auto& attempt) {
    if (training.policy.replica_count == 1) return attempt();
    all_or_none(groups.world(), attempt);
  };
  together([&] { own_ = replica.allocate(bytes(Space::kArena), Category::kArena, "arena"); });
  if (bytes(Space::kPeers) > 0)
    together([&] { peers_ = groups.peers().allocate(bytes(Space::kPeers), Category::kArena, "arena"); });
  if (!training.schedule.view) return;
  const int64_t shared = training.schedule.bytes(Space::kSharedRange);
  together([&] {
    shared_ = replica.allocate_shared(shared, shared / replica.rank_count(), Category::kArena, "parameter shards");
  });
}

}  // namespace aliquot
