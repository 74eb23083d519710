#pragma once
// Comparison of sums over ranks with those that other ranks repeat (Policy::replay_every).

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/reduce_recipe.h"
#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"
#include "engine/run/replay_finding.h"

namespace aliquot {

/// Compares the digests of sums over ranks: see RepeatedSums. Used from the rank's own thread, while its streams are
/// idle. Everything passed must outlive it.
class SumCheck {
 public:
  SumCheck(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view);

  /// Collective over all ranks, after all reduces of a step with a replay. Throws ReplayError on all ranks if a sum
  /// differs from a repetition.
  void require_equal(int64_t step) const;

 private:
  static constexpr int kMaxSums = 3;  // the own sums and two repetitions
  /// One value for the own sums, and one for each repetition.
  using Values = std::array<uint64_t, kMaxSums>;
  /// What ranks exchange about their shard group and their replicate group. The number of repetitions may differ
  /// between pipeline stages: a stage on several nodes may quantize its sums, and then repeats none.
  struct OfRank {
    std::array<int64_t, 2> repetitions;
    std::array<Values, 2> values;
  };
  /// The sums of a rank are not equal on the ranks that computed them.
  struct Difference {
    GroupId group;
    int owner;
    std::vector<int> ranks;          // the owner, then the ranks that repeated its sums
    std::vector<int> suspects = {};  // the ranks that may be wrong
  };

  std::vector<uint64_t> digests(const RepeatedSums& repeated, int32_t flat, int repetition) const;
  Values values_of(GroupId group, int32_t flat) const;
  OfRank own() const;
  std::vector<Difference> differences(const std::vector<OfRank>& all) const;
  FirstDifference locate(const Difference& difference) const;

  const Plan& plan_;
  const MeshGroups& groups_;
  const StepMemory& memory_;
  const HostView& view_;
};

}  // namespace aliquot
