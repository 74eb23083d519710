#pragma once
// The memory that a plan's buffers lie in.

#include <optional>

#include "engine/plan/schedule.h"
#include "engine/run/replica_groups.h"

namespace aliquot {

/// Of each rank's own a range that its replica reads, and one that its peers do; and where gathers are views, a range that
/// ranks share. Where the policy checks, on a host, what the model sees can be aliased. Made collectively, large enough for
/// training and evaluation, which take turns in it; the
/// groups must outlive it.
class Arena {
 public:
  Arena(const Plan& training, const Plan& evaluation, const ReplicaGroups& groups);

  /// kArena or kReplicateGroup.
  const SymmetricBuffer& buffer(Space space) const { return space == Space::kReplicateGroup ? peers_ : own_; }
  /// Only where gathers are views.
  const SharedRange& shared() const { return *shared_; }

 private:
  SymmetricBuffer own_, peers_;
  std::optional<SharedRange> shared_;
};

}  // namespace aliquot
