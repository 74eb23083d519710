#pragma once
// The memory of a plan's buffers.

#include <optional>

#include "engine/plan/schedule.h"
#include "engine/run/replica_groups.h"

namespace aliquot {

/// Allocates the spaces of a plan: a range that the shard group can read, one that the replicate group can read, and,
/// if gathers are views, a range that ranks share. They are large enough for training and for evaluation, which use
/// them in turns. In the checking mode on hosts, the ranges can be aliased (AliasedPages). Construction is collective.
/// The groups must outlive it.
class Arena {
 public:
  Arena(const Plan& training, const Plan& evaluation, const ReplicaGroups& groups);

  /// `space` is kArena or kReplicateGroup.
  const SymmetricBuffer& buffer(Space space) const { return space == Space::kReplicateGroup ? peers_ : own_; }
  /// Call only if gathers are views.
  const SharedRange& shared() const { return *shared_; }

 private:
  SymmetricBuffer own_, peers_;
  std::optional<SharedRange> shared_;
};

}  // namespace aliquot
