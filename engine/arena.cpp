#include "engine/arena.h"

#include <algorithm>

namespace aliquot {

Arena::Arena(const Plan& training, const Plan& evaluation, Communicator& communicator)
    : own_(communicator.allocate(std::max(training.schedule.arena_bytes, evaluation.schedule.arena_bytes),
                                 Category::kArena, "arena")) {
  if (!training.schedule.view) return;
  const int64_t bytes = training.schedule.shared_range_bytes;
  shared_ =
      communicator.allocate_shared(bytes, bytes / communicator.rank_count(), Category::kArena, "parameter shards");
}

}  // namespace aliquot
