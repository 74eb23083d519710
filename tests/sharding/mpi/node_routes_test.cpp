#include "sharding/mpi/node_routes.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

#include "sharding/comm/reduce_staging.h"

namespace aliquot {
namespace {

Topology nodes_of(const std::vector<int>& node_of_rank) {
  return {.node_of_rank = node_of_rank, .gpu_of_rank = std::vector<int>(node_of_rank.size(), -1)};
}

const std::vector<std::vector<int>> kWorlds = {
    {0, 1},          {0, 0, 1, 1},       {0, 0, 0, 1, 1},          {0, 1, 1, 1, 1},
    {0, 1, 0, 1, 2}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 2, 3, 3, 3, 0}};

TEST(NodeRoutesTest, EveryRankHasOneProxyOnEachOtherNode) {
  for (const auto& world : kWorlds) {
    const Topology topology = nodes_of(world);
    // Keyed by (rank, node): how many ranks of the node are proxies of the rank.
    std::map<std::pair<int, int>, int> servings;
    for (int r = 0; r < topology.rank_count(); ++r) {
      const NodeRoutes routes(topology, r);
      for (const int rank : routes.served_ranks) {
        EXPECT_NE(world[rank], world[r]);
        EXPECT_EQ(NodeRoutes(topology, rank).proxy(rank, world[r]), r);
        ++servings[{rank, world[r]}];
      }
    }
    for (int r = 0; r < topology.rank_count(); ++r) {
      const NodeRoutes routes(topology, r);
      EXPECT_EQ(static_cast<int>(routes.proxies.size()), topology.node_count() - 1);
      for (int node = 0; node < topology.node_count(); ++node) {
        EXPECT_EQ((servings[{r, node}]), node == world[r] ? 0 : 1);
      }
    }
  }
}

TEST(NodeRoutesTest, MembersAndRemoteRanksTogetherAreTheWorld) {
  for (const auto& world : kWorlds) {
    for (int r = 0; r < static_cast<int>(world.size()); ++r) {
      const NodeRoutes routes(nodes_of(world), r);
      std::set<int> all(routes.members.begin(), routes.members.end());
      EXPECT_TRUE(all.contains(r));
      all.insert(routes.remote_ranks.begin(), routes.remote_ranks.end());
      EXPECT_EQ(all.size(), world.size());
      EXPECT_EQ(routes.members.size() + routes.remote_ranks.size(), world.size());
    }
  }
}

TEST(NodeRoutesTest, ProxiesAreSpreadOverTheRanksOfANode) {
  const Topology topology = nodes_of({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  for (int r = 0; r < 12; ++r) EXPECT_EQ(NodeRoutes(topology, r).served_ranks.size(), 2u);
}

TEST(NodeRoutesTest, NodesReduceFirstIfTheirRanksFormSubtrees) {
  EXPECT_TRUE(NodeRoutes(nodes_of({0, 0, 1, 1}), 0).nodes_reduce_first);
  EXPECT_TRUE(NodeRoutes(nodes_of({0, 0, 1, 1, 2}), 0).nodes_reduce_first);
  EXPECT_FALSE(NodeRoutes(nodes_of({0, 1, 2, 3}), 0).nodes_reduce_first);
  EXPECT_FALSE(NodeRoutes(nodes_of({0, 0, 0, 1, 1}), 0).nodes_reduce_first);
  EXPECT_FALSE(NodeRoutes(nodes_of({0, 1, 0, 1}), 0).nodes_reduce_first);
}

/// Returns the largest number of inputs and partial sums for which a rank of the topology needs staging at once.
int64_t most_places(const Topology& topology) {
  int64_t most = 0;
  for (int r = 0; r < topology.rank_count(); ++r) {
    const NodeRoutes routes(topology, r);
    const std::size_t places = routes.nodes_reduce_first
                                   ? routes.served_ranks.size() + static_cast<std::size_t>(routes.node_count())
                                   : routes.remote_ranks.size();
    most = std::max(most, static_cast<int64_t>(places));
  }
  return most;
}

TEST(ReduceStagingTest, HasAPlaceForEveryPieceOfEveryRank) {
  for (const auto& world : kWorlds) {
    const Topology topology = nodes_of(world);
    EXPECT_EQ(reduce_staging(topology, 1).place_count, most_places(topology)) << topology.describe();
  }
}

TEST(ReduceStagingTest, SizeGrowsWithThePartUpToItsLimit) {
  // The staging memory has space for 3 parts: 1 for the rank whose proxy this rank is, and 2 for the nodes.
  const Topology topology = nodes_of({0, 0, 1, 1});
  EXPECT_EQ(reduce_staging(topology, 0).size_bytes(), 0);
  EXPECT_EQ(reduce_staging(topology, 1).size_bytes(), 3 * 256 * 4);
  EXPECT_EQ(reduce_staging(topology, 257).size_bytes(), 3 * 512 * 4);
  int64_t before = 0;
  for (int64_t count = 256; count < int64_t{1} << 28; count += count / 3) {
    const ReduceStaging staging = reduce_staging(topology, count);
    EXPECT_GE(staging.size_bytes(), before);
    EXPECT_LE(staging.size_bytes(), ReduceStaging::kMaxBytes);
    EXPECT_EQ(staging.slot_count, staging.piece_elements >= count ? 1 : 2);
    before = staging.size_bytes();
  }
  EXPECT_GT(before, ReduceStaging::kMaxBytes - 2 * 3 * 256 * 4);
}

TEST(ReduceStagingTest, HasOneSlotForAPieceOfEachRankOverNccl) {
  Topology gpus{.node_of_rank = {0, 0, 1}, .gpu_of_rank = {0, 1, 0}, .over_nccl = true};
  EXPECT_EQ(reduce_staging(gpus, 257).size_bytes(), 3 * 512 * 4);
  const ReduceStaging cut = reduce_staging(gpus, int64_t{1} << 30);
  EXPECT_EQ(cut.slot_count, 1);
  EXPECT_GT(cut.size_bytes(), gpus.nccl_staging_bytes - 3 * 256 * 4);
  EXPECT_LE(cut.size_bytes(), gpus.nccl_staging_bytes);
  // 600 ranks are three groups of at most 256, with a partial sum each.
  gpus = {.node_of_rank = std::vector<int>(600, 0), .gpu_of_rank = std::vector<int>(600, 0), .over_nccl = true};
  EXPECT_EQ(reduce_staging(gpus, 1).place_count, 603);
  const Topology one{.node_of_rank = {0}, .gpu_of_rank = {0}, .over_nccl = true};
  EXPECT_EQ(reduce_staging(one, 1 << 20).size_bytes(), 0);
}

TEST(ReduceStagingTest, OverNcclOnlySumsThatNcclCannotAddNeedIt) {
  const Topology gpus{.node_of_rank = {0, 0}, .gpu_of_rank = {0, 1}, .over_nccl = true};
  const Topology nodes = nodes_of({0, 1});
  constexpr DType kF32 = DType::kFloat32, kB16 = DType::kBFloat16;
  EXPECT_FALSE(sum_needs_staging(gpus, false, kF32, kF32));
  EXPECT_TRUE(sum_needs_staging(gpus, true, kF32, kF32));
  EXPECT_TRUE(sum_needs_staging(gpus, false, kB16, kF32));
  EXPECT_TRUE(sum_needs_staging(gpus, false, kF32, kB16));
  EXPECT_TRUE(sum_needs_staging(nodes, false, kF32, kF32));
  EXPECT_FALSE(sum_needs_staging(Topology::one_host(2), true, kB16, kB16));
}

TEST(ReduceStagingTest, IsEmptyOnOneNodeAndOnGpusWithoutNccl) {
  EXPECT_EQ(reduce_staging(Topology::one_host(4), 1 << 20).size_bytes(), 0);
  Topology gpus = nodes_of({0, 1});
  gpus.gpu_of_rank = {0, 0};
  EXPECT_EQ(reduce_staging(gpus, 1 << 20).size_bytes(), 0);
}

}  // namespace
}  // namespace aliquot
