// Tests the line of text that describes a plan.
#include "engine/plan/plan_line.h"

#include <gtest/gtest.h>
#include <sstream>

#include "tests/engine/plan/chain_model.h"

namespace aliquot {
namespace {

constexpr int64_t kElements = int64_t{8} << 20;

Plan planned(int unit_count, int zero_stage, int rank_count, GatherMode gather = GatherMode::kAuto) {
  Policy policy{.zero_stage = zero_stage, .gather = gather};
  policy.state_bytes_per_block = 8 * kBlockElements;
  return plan(testing::chain(unit_count, kElements / unit_count), policy, Topology::one_host(rank_count));
}

std::string line(const Plan& plan) {
  std::ostringstream text;
  text << plan;
  return text.str();
}

/// A rank holds its shard and all gradients of the unit. With two ranks, this is more than it saves.
TEST(PlanLine, SuggestsSmallerUnitsIfALowerZeroStageNeedsLess) {
  const std::string text = line(planned(1, 2, 2));
  EXPECT_EQ(text.substr(0, 49), "ZeRO stage 2 on 2 ranks, memory per rank: paramet");
  const std::string advice =
      " more than ZeRO stage 1, because unit h.0 has 100 % of the parameters, and a rank holds all of them while it "
      "uses the unit: declare several smaller units";
  EXPECT_NE(text.find("; hint: ZeRO stage 2 needs "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(advice)) << text;
  EXPECT_NE(unit_hint(planned(1, 3, 2, GatherMode::kCopy)), "");
}

TEST(PlanLine, IsShortIfUnitsAreSmallOrNothingIsSharded) {
  for (int zero_stage = 0; zero_stage <= 3; ++zero_stage) {
    EXPECT_EQ(unit_hint(planned(32, zero_stage, 2)), "") << zero_stage;
    EXPECT_EQ(unit_hint(planned(1, zero_stage, 1)), "") << zero_stage;
    EXPECT_EQ(line(planned(32, zero_stage, 2)).find("hint"), std::string::npos);
  }
  EXPECT_EQ(unit_hint(planned(1, 1, 2)), "");
}

}  // namespace
}  // namespace aliquot
