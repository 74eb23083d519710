// Tests allowed_cores(), numa_node_of() and parse_core_list(). A temporary directory replaces /sys/devices/system/node.
#include "sharding/cores.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "kernels/device/host_stream.h"
#include "kernels/system/thread_pool.h"
#include "sharding/world.h"
#include "tests/support/one_core.h"

namespace aliquot {
namespace {

using test::OneCore;

TEST(Cores, ParsesLists) {
  EXPECT_EQ(parse_core_list("0-3,8,10-11"), (std::vector{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_core_list("5\n"), std::vector{5});
  EXPECT_TRUE(parse_core_list("").empty());
  EXPECT_TRUE(parse_core_list("none").empty());
}

TEST(Cores, ThisThreadHasAnAllowedCore) {
  const auto cores = allowed_cores();
  EXPECT_NE(std::count(cores.begin(), cores.end(), true), 0);
}

TEST(Cores, ABindingLimitsTheAllowedCoresButNotTheCpuset) {
  const int cpuset = cpuset_core_count();
  EXPECT_GE(cpuset, allowed_core_count());
  const OneCore bound;
  EXPECT_EQ(allowed_core_count(), 1);
  EXPECT_EQ(cpuset_core_count(), cpuset);
  EXPECT_EQ(allowed_core_count(), 1) << "cpuset_core_count() changed the binding of this thread";
}

/// A world of threads in a process that is bound to a core, for example by taskset or by mpirun -n 1.
TEST(Cores, AWorldOfThreadsUsesTheAllowedCores) {
  const auto threads_of_a_rank = [](int rank_count) {
    int count = 0;
    const auto body = [&count](World& world) {
      if (world.rank() == 0) count = as_host_stream(*world.device().make_stream(Lane::kCompute)).pool().thread_count();
    };
    World::threads(rank_count, body, {.device = DeviceChoice::kHost});
    return count;
  };
  EXPECT_EQ(threads_of_a_rank(1), allowed_core_count());
  const OneCore bound;
  EXPECT_EQ(threads_of_a_rank(1), 1);
  EXPECT_EQ(threads_of_a_rank(2), 1);
}

class NumaNodes : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [node, list] : {std::pair{"node0", "0-3"}, std::pair{"node1", "4-7"}, std::pair{"power", "0-7"}}) {
      std::filesystem::create_directories(folder / node);
      std::ofstream(folder / node / "cpulist") << list << '\n';
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  int node_of(std::initializer_list<int> cores) const {
    std::vector<bool> allowed(8, false);
    for (const int core : cores) allowed[static_cast<std::size_t>(core)] = true;
    return numa_node_of(allowed, folder);
  }
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "aliquot-numa-nodes";
};

TEST_F(NumaNodes, CoresOfOneNodeGiveThatNode) {
  EXPECT_EQ(node_of({0, 2}), 0);
  EXPECT_EQ(node_of({7}), 1);
}

TEST_F(NumaNodes, CoresOfSeveralNodesGiveNoNode) { EXPECT_EQ(node_of({3, 4}), -1); }

TEST(Cores, RanksOutsideOfTheGroupShareUnboundCores) {
  // 4 of 64 ranks train, on a machine with 64 cores.
  EXPECT_EQ(
      outside_ranks_per_core({.own_core_count = 64, .cpuset_core_count = 64, .rank_count = 4, .launched_count = 64}),
      60);
  // Bound to one of two sockets: half of the other ranks run there.
  EXPECT_EQ(
      outside_ranks_per_core({.own_core_count = 32, .cpuset_core_count = 64, .rank_count = 4, .launched_count = 64}),
      30);
  // Bound to a core of its own.
  EXPECT_EQ(
      outside_ranks_per_core({.own_core_count = 1, .cpuset_core_count = 64, .rank_count = 4, .launched_count = 64}), 0);
  // All ranks are in the group, or the number of processes is unknown.
  EXPECT_EQ(outside_ranks_per_core({.own_core_count = 2, .cpuset_core_count = 2, .rank_count = 4, .launched_count = 4}),
            0);
  EXPECT_EQ(outside_ranks_per_core({.own_core_count = 2, .cpuset_core_count = 2, .rank_count = 4, .launched_count = 0}),
            0);
}

TEST(Cores, ShareOfAWorldOfOneRankLeavesCoresToTheOtherProcesses) {
  const std::vector<bool> all(8, true), two = {false, false, true, true, false, false, false, false};
  const auto share = [](const std::vector<bool>& own, int launched) {
    return static_cast<int>(share_of_cores(own, {own}, 8, launched));
  };
  EXPECT_EQ(share(all, 4), 2);
  EXPECT_EQ(share(all, 3), 2);
  EXPECT_EQ(share(all, 1), 8);
  EXPECT_EQ(share(all, 0), 8);
  EXPECT_EQ(share(two, 4), 2);  // bound to a quarter of the cores
  // A container has two cores of the machine. Its processes are not bound within them.
  EXPECT_EQ(static_cast<int>(share_of_cores(two, {two}, 2, 4)), 0);
  EXPECT_EQ(static_cast<int>(share_of_cores(two, {two}, 2, 2)), 1);
}

TEST(Cores, RanksOfTheGroupShareTheCoresOnWhichBothMayRun) {
  const std::vector<bool> first = {true, true, true, false}, second = {false, false, true, true};
  EXPECT_NEAR(share_of_cores(first, {first, second}, 4, 2), 2.5, 1e-5);
  EXPECT_NEAR(share_of_cores(second, {first, second}, 4, 2), 1.5, 1e-5);
  // Three ranks share three cores: the sum of thirds is not rounded below 1.
  const std::vector<bool> three(3, true);
  EXPECT_EQ(static_cast<int>(share_of_cores(three, {three, three, three}, 3, 3)), 1);
}

TEST(Cores, MissingSystemDirectoryGivesNoNode) { EXPECT_EQ(numa_node_of({true}, "/nowhere/to/be/found"), -1); }

}  // namespace
}  // namespace aliquot
