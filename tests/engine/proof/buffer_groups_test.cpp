// Tests the group of every buffer. The planner assigns a group that the brute-force reference finds, and the validator
// rejects every other group.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/proof/validate.h"
#include "tests/engine/plan/brute_force.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

using testing::RandomCase;

std::vector<Plan> all_stages(const RandomCase& drawn) {
  return plan_pipeline(drawn.model, drawn.policy, drawn.topology);
}

bool rejects_group(const Plan& plan) {
  const auto defects = validate(plan);
  return std::ranges::any_of(defects, [](const Defect& defect) { return defect.kind == DefectKind::kGroup; });
}

struct Tally {
  int made = 0, equivalent = 0, caught = 0;
};

/// Assigns every other group to each buffer, and expects that the validator rejects it. Counts a group as equivalent if
/// the brute-force reference finds it too.
void mutate_groups(const Plan& original, std::map<GroupId, Tally>& table) {
  const auto narrowest = testing::narrowest_groups(original);
  Plan mutant = original;
  for (std::size_t b = 0; b < original.schedule.buffers.size(); ++b) {
    const PlannedBuffer& buffer = original.schedule.buffers[b];
    ASSERT_TRUE(narrowest[b].contains(buffer.group)) << name(buffer.role) << " names " << name(buffer.group);
    for (int g = 0; g < kGroupCount; ++g) {
      const auto other = static_cast<GroupId>(g);
      if (other == buffer.group) continue;
      mutant.schedule.buffers[b].group = other;
      Tally& tally = table[other];
      ++tally.made;
      EXPECT_TRUE(rejects_group(mutant)) << name(buffer.role) << " of " << name(other);
      if (buffer.size_bytes > 0 && !narrowest[b].contains(other)) {
        ++tally.caught;
      } else if (buffer.size_bytes > 0) {
        ++tally.equivalent;
      }
    }
    mutant.schedule.buffers[b].group = buffer.group;
  }
}

void print(const std::map<GroupId, Tally>& table) {
  fmt::print("{:<34} {:>8} {:>10} {:>8}\n", "a buffer of another group", "made", "equivalent", "caught");
  for (const auto& [group, tally] : table)
    fmt::print("{:<34} {:>8} {:>10} {:>8}\n", name(group), tally.made, tally.equivalent, tally.caught);
}

TEST(BufferGroups, AgreeWithTheBruteForceReference) {
  std::map<GroupId, int> planned;
  for (uint64_t seed = 0; seed < 500 && !HasFailure(); ++seed) {
    const RandomCase drawn = seed % 2 == 0 ? testing::draw(seed, 4, 4) : testing::draw_pipeline(seed, 4, 4);
    for (const Plan& stage : all_stages(drawn)) {
      if (stage.schedule.operations.size() > 100) continue;
      const auto narrowest = testing::narrowest_groups(stage);
      for (std::size_t b = 0; b < narrowest.size(); ++b) {
        const PlannedBuffer& buffer = stage.schedule.buffers[b];
        EXPECT_TRUE(narrowest[b].contains(buffer.group)) << name(buffer.role) << " names " << name(buffer.group) << "\n"
                                                         << testing::describe(seed, drawn) << "\n"
                                                         << text(stage);
        ++planned[buffer.group];
      }
    }
  }
  // kStage is the group of buffers that the shard group and the replicate group both read. kPipeline is the group of
  // gradients of activations that come from one pipeline stage and go to another.
  for (const GroupId group : {GroupId::kRank, GroupId::kShard, GroupId::kReplica, GroupId::kStage, GroupId::kNextStage,
                              GroupId::kPreviousStage, GroupId::kPipeline})
    EXPECT_GT(planned[group], 0) << name(group) << " was never planned";
}

TEST(BufferGroups, ABufferOfAnotherGroupIsCaught) {
  std::map<GroupId, Tally> table;
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    const RandomCase drawn = seed % 2 == 0 ? testing::draw(seed, 4, 3) : testing::draw_pipeline(seed, 3, 4);
    for (const Plan& stage : all_stages(drawn)) {
      if (stage.schedule.operations.size() <= 60) mutate_groups(stage, table);
    }
  }
  print(table);
  for (int g = 0; g < kGroupCount; ++g) EXPECT_GT(table[static_cast<GroupId>(g)].caught, 0) << g;
}

}  // namespace
}  // namespace aliquot
