#pragma once
// The allocations for a plan's buffers.

#include <array>
#include <optional>
#include <vector>

#include "engine/plan/schedule.h"
#include "engine/run/mesh_groups.h"

namespace aliquot {

/// Allocates the memory for the buffers of a plan: an arena on each rank and, if gathers are views, a range that the
/// ranks of a shard group share. Both are large enough for training, evaluation and replays, which never run at the
/// same time. In the checking mode on hosts, both can be aliased (AliasedPages). Construction is collective. The groups
/// must outlive the Arena.
///
/// Each rank allocates the arena of its own plans. So the arenas of different pipeline stages may differ in size.
class Arena {
 public:
  /// `others`: the plans that use the same memory as `training`.
  Arena(const Plan& training, const std::vector<const Plan*>& others, const MeshGroups& groups);

  /// The arenas of the two ranks that make a transfer with this verb.
  const SymmetricBuffer& pair(Verb verb) const { return *pairs_[MeshGroups::pair_index(verb)]; }
  /// The arena with the ranks of `group` as peers.
  const SymmetricBuffer& buffer(GroupId group) const {
    const auto& view = views_[memory_index(group)];
    return view ? *view : world_;
  }
  std::byte* local() const { return world_.local(); }
  /// Call only if gathers are views.
  const SharedRange& shared() const { return *shared_; }

 private:
  SymmetricBuffer world_;
  /// One for each group of kMemoryGroups; empty if the group is the world.
  std::array<std::optional<SymmetricBuffer>, kMemoryGroups.size()> views_;
  std::array<std::optional<SymmetricBuffer>, MeshGroups::kPairCount> pairs_;  // see pair_index(); empty: no neighbor
  std::optional<SharedRange> shared_;
};

}  // namespace aliquot
