#include "engine/arena.h"

#include <algorithm>

namespace aliquot {

Arena::Arena(const Plan& training, const Plan& evaluation, Communicator& communicator)
    : own_(communicator.allocate(
          std::max(training.schedule.bytes(Space::kArena), evaluation.schedule.bytes(Space::kArena)), Category::kArena,
          "arena")) {
  if (!training.schedule.view) return;
  const int64_t bytes = training.schedule.bytes(Space::kSharedRange);
  shared_ =
      communicator.allocate_shared(bytes, bytes / communicator.rank_count(), Category::kArena, "parameter shards");
}

}  // namespace aliquot
