// Conformance tests of objects, barriers and groups. Also instantiates the test suites.
#include <atomic>
#include <numeric>

#include "kernels/system/error.h"
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {
namespace {

TEST_P(EveryWorldOnce, ObjectsOfAnyLengthAreGathered) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
      const std::string own(ranks.rank() % 2 == 0 ? length : length / 3, static_cast<char>('a' + ranks.rank()));
      const auto all = ranks.gather_objects(own);
      ASSERT_EQ(static_cast<int>(all.size()), ranks.rank_count());
      for (int r = 0; r < ranks.rank_count(); ++r) {
        EXPECT_EQ(all[r], std::string(r % 2 == 0 ? length : length / 3, static_cast<char>('a' + r)));
      }
    }
  });
}

TEST_P(EveryWorldOnce, TooLargeAllocationThrowsOnAllRanks) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    EXPECT_THROW(ranks.allocate(int64_t{1} << 50, Category::kSlots, "1 PiB"), UnavailableError);
    // The communicator must remain usable after the failed allocation.
    const auto small = ranks.allocate(4096, Category::kSlots, "enough");
    const auto stream = world.device().make_stream(Lane::kCompute);
    ranks.barrier(*stream, {"after"});
    stream->synchronize();
  });
}

TEST_P(EveryWorldOnce, ManySmallOperationsOnAllLanes) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    const auto gather = world.device().make_stream(Lane::kGather);
    const auto reduce = world.device().make_stream(Lane::kReduce);
    const auto compute = world.device().make_stream(Lane::kCompute);
    const auto gathered = ranks.allocate(64 * ranks.rank_count(), Category::kSlots, "gathered");
    const auto own = ranks.allocate(64, Category::kSlots, "own");
    for (int i = 0; i < 300; ++i) {
      ranks.all_gather(*gather, {&gathered, 0}, {&own, 0}, 64, {"small", i});
      ranks.barrier(*reduce, {"small", i});
      double number = i;
      ranks.all_reduce(*compute, {&number, 1}, Reduction::kSum, {"small", i});
      compute->synchronize();
      ASSERT_EQ(number, static_cast<double>(i) * ranks.rank_count());
    }
    gather->synchronize();
    reduce->synchronize();
    ranks.barrier(*compute, {"end"});
    compute->synchronize();
  });
}

/// Returns the sum of the world ranks of the members, which shows whether the group has the expected members.
double sum_of_world_ranks(World& world, Communicator& group) {
  double number = world.rank();
  const auto stream = world.device().make_stream(Lane::kCompute);
  group.all_reduce(*stream, {&number, 1}, Reduction::kSum, {"test"});
  stream->synchronize();
  return number;
}

TEST_P(EveryWorldOnce, SplitGroupsByColorAndOrdersByKey) {
  run([&](World& world) {
    const int n = world.rank_count(), r = world.rank();
    const auto group = world.communicator().split(r % 2, -r);
    const int members = (n - r % 2 + 1) / 2;
    ASSERT_EQ(group->rank_count(), members);
    EXPECT_EQ(group->rank(), members - 1 - r / 2);  // the key -r reverses the order of the ranks
    EXPECT_EQ(group->topology().rank_count(), members);
    double expected = 0;
    for (int i = r % 2; i < n; i += 2) expected += i;
    EXPECT_EQ(sum_of_world_ranks(world, *group), expected);
    EXPECT_EQ(sum_of_world_ranks(world, world.communicator()), n * (n - 1) / 2.0);  // the parent remains usable
    world.communicator().gather_objects("end");
  });
}

TEST_P(EveryWorldOnce, GroupsCanBeSplitAgain) {
  run([&](World& world) {
    const auto half = world.communicator().split(world.rank() / 2, 0);
    const auto alone = half->split(half->rank(), 0);
    EXPECT_EQ(alone->rank_count(), 1);
    EXPECT_EQ(sum_of_world_ranks(world, *alone), world.rank());
    world.communicator().gather_objects("end");
  });
}

TEST_P(EveryWorldOnce, AllReduceAboveTheMaximumCountThrows) {
  run([](World& world) {
    std::vector<double> values(static_cast<size_t>(Communicator::kSmallCount) + 1, 1.0);
    const auto stream = world.device().make_stream(Lane::kCompute);
    EXPECT_THROW(world.communicator().all_reduce(*stream, values, Reduction::kSum, {}), UsageError);
    EXPECT_THROW(world.sum(values), UsageError);
    EXPECT_EQ(sum_of_world_ranks(world, world.communicator()), world.rank_count() * (world.rank_count() - 1) / 2.0);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : world_sizes()) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{1'000'003}})
      all.push_back({ranks, count});
  }
  return all;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Conformance, EveryWorld, testing::ValuesIn(cases()), [](const auto& test) {
  return std::to_string(test.param.rank_count) + "Ranks" + std::to_string(test.param.count);
});
INSTANTIATE_TEST_SUITE_P(Conformance, EveryWorldOnce, testing::ValuesIn(world_sizes()),
                         [](const auto& test) { return std::to_string(test.param) + "Ranks"; });

}  // namespace aliquot::conformance
