#include "sharding/node_plan.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

namespace aliquot {
namespace {

Topology nodes_of(const std::vector<int>& node_of_rank) {
  return {.node_of_rank = node_of_rank, .gpu_of_rank = std::vector<int>(node_of_rank.size(), -1)};
}

const std::vector<std::vector<int>> kWorlds = {
    {0, 1},          {0, 0, 1, 1},       {0, 0, 0, 1, 1},          {0, 1, 1, 1, 1},
    {0, 1, 0, 1, 2}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 2, 3, 3, 3, 0}};

TEST(NodePlanTest, EveryRankIsServedOnceOnEachOtherNode) {
  for (const auto& world : kWorlds) {
    const Topology topology = nodes_of(world);
    std::map<std::pair<int, int>, int> servings;  // (rank, node) -> times
    int most = 0;
    for (int r = 0; r < topology.rank_count(); ++r) {
      const NodePlan plan(topology, r);
      for (const int rank : plan.served) {
        EXPECT_NE(world[rank], world[r]);
        EXPECT_EQ(NodePlan(topology, rank).proxy(rank, world[r]), r);
        ++servings[{rank, world[r]}];
      }
      most = std::max(most, static_cast<int>(plan.served.size()));
    }
    for (int r = 0; r < topology.rank_count(); ++r) {
      const NodePlan plan(topology, r);
      EXPECT_EQ(plan.most_served, most);
      EXPECT_EQ(static_cast<int>(plan.proxies.size()), topology.node_count() - 1);
      for (int node = 0; node < topology.node_count(); ++node) {
        EXPECT_EQ((servings[{r, node}]), node == world[r] ? 0 : 1);
      }
    }
  }
}

TEST(NodePlanTest, MembersAndRemotesTileTheWorld) {
  for (const auto& world : kWorlds) {
    for (int r = 0; r < static_cast<int>(world.size()); ++r) {
      const NodePlan plan(nodes_of(world), r);
      std::set<int> all(plan.members.begin(), plan.members.end());
      EXPECT_TRUE(all.contains(r));
      all.insert(plan.remote.begin(), plan.remote.end());
      EXPECT_EQ(all.size(), world.size());
      EXPECT_EQ(plan.members.size() + plan.remote.size(), world.size());
    }
  }
}

TEST(NodePlanTest, ServingIsSpreadOverANodesRanks) {
  const Topology topology = nodes_of({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  for (int r = 0; r < 12; ++r) EXPECT_EQ(NodePlan(topology, r).served.size(), 2u);
}

TEST(NodePlanTest, NodesAddWhereTheyAreSubtreesOfSeveralRanks) {
  EXPECT_TRUE(NodePlan(nodes_of({0, 0, 1, 1}), 0).nodes_add);
  EXPECT_TRUE(NodePlan(nodes_of({0, 0, 1, 1, 2}), 0).nodes_add);
  EXPECT_FALSE(NodePlan(nodes_of({0, 1, 2, 3}), 0).nodes_add);
  EXPECT_FALSE(NodePlan(nodes_of({0, 0, 0, 1, 1}), 0).nodes_add);
  EXPECT_FALSE(NodePlan(nodes_of({0, 1, 0, 1}), 0).nodes_add);
}

}  // namespace
}  // namespace aliquot
