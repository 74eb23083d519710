// Tests of AdversarialScheduler with several ranks. If a wait is missing, some seeds give wrong values. With all waits,
// all seeds give the expected values.
#include <atomic>
#include <gtest/gtest.h>

#include "kernels/device/host_stream.h"
#include "kernels/elementwise/kernels.h"
#include "sharding/world.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

constexpr int kSeeds = 20;
// The minimum number of seeds that must expose a missing wait. The actual number also depends on the timing of threads.
constexpr int kMinExposingSeeds = 2;
constexpr int kRounds = 6;
constexpr int64_t kCount = 512;

struct Waits {
  bool gather_waits_for_compute = true;
  bool compute_waits_for_gather = true;
  bool writer_waits_for_all_gathers = true;
};

/// In each round, every rank writes a number, gathers the numbers of all ranks and reads them. This corresponds to the
/// update, gather and use of a unit. Returns true if all ranks have read the expected numbers.
bool gathers_expected_values(uint64_t seed, int rank_count, Waits waits, AdversarialScheduler::Compute compute_lane) {
  AdversarialScheduler adversary(seed, compute_lane);
  std::atomic<int> wrong_count{0};
  const auto body = [&](World& world) {
    auto& ranks = world.communicator();
    const auto own = ranks.allocate(kCount * 4, Category::kParameters, "own");
    const auto gathered = ranks.allocate(kCount * 4 * rank_count, Category::kSlots, "gathered");
    auto* mine = reinterpret_cast<float*>(own.local());
    const auto* all = reinterpret_cast<const float*>(gathered.local());
    const auto compute = world.device().make_stream(Lane::kCompute);
    const auto gather = world.device().make_stream(Lane::kGather);
    const auto event = world.device().make_event();
    for (int round = 0; round < kRounds; ++round) {
      if (waits.writer_waits_for_all_gathers) ranks.await(*compute, Lane::kGather, round, {"rewrite", round});
      as_host_stream(*compute).run(
          [mine, value = static_cast<float>(100 * round + world.rank())] { std::fill_n(mine, kCount, value); });
      compute->record(*event);
      if (waits.gather_waits_for_compute) gather->wait(*event);
      ranks.all_gather(*gather, {&gathered, 0}, {&own, 0}, kCount * 4, {"h.0", round});
      ranks.publish(*gather, round + 1);
      gather->record(*event);
      if (waits.compute_waits_for_gather) compute->wait(*event);
      as_host_stream(*compute).run([all, round, rank_count, &wrong_count] {
        for (int64_t i = 0; i < kCount * rank_count; ++i)
          wrong_count += all[i] != static_cast<float>(100 * round + i / kCount);
      });
    }
    compute->synchronize();
    gather->synchronize();
    ranks.gather_objects("end");
  };
  World::threads(rank_count, body,
                 {.timeout_seconds = 30, .make_device = [&](int) { return adversary.make_device(); }});
  return wrong_count == 0;
}

int failing_seed_count(int rank_count, Waits waits, AdversarialScheduler::Compute compute_lane) {
  int found = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    found += !gathers_expected_values(seed, rank_count, waits, compute_lane);
  return found;
}

class AdversaryOverRanks : public testing::TestWithParam<AdversarialScheduler::Compute> {};

TEST_P(AdversaryOverRanks, AllWaitsGiveTheExpectedValues) {
  for (const int ranks : {1, 2, 3}) EXPECT_EQ(failing_seed_count(ranks, {}, GetParam()), 0) << ranks << " ranks";
}

// With kInline, compute work runs immediately, so only kQueued can expose a missing wait for it.
TEST(AdversaryOverQueuedRanks, ExposesAMissingWaitForTheComputeLane) {
  EXPECT_GE(failing_seed_count(2, {.gather_waits_for_compute = false}, AdversarialScheduler::Compute::kQueued),
            kMinExposingSeeds);
}

TEST_P(AdversaryOverRanks, ExposesAMissingWaitOnTheSameRank) {
  EXPECT_GE(failing_seed_count(2, {.compute_waits_for_gather = false}, GetParam()), kMinExposingSeeds);
}

TEST_P(AdversaryOverRanks, ExposesAMissingWaitForOtherRanks) {
  EXPECT_GE(failing_seed_count(2, {.writer_waits_for_all_gathers = false}, GetParam()), kMinExposingSeeds);
}

INSTANTIATE_TEST_SUITE_P(ComputeLane, AdversaryOverRanks,
                         testing::Values(AdversarialScheduler::Compute::kInline,
                                         AdversarialScheduler::Compute::kQueued),
                         [](const auto& test) {
                           return test.param == AdversarialScheduler::Compute::kQueued ? "queued" : "inline";
                         });

}  // namespace
}  // namespace aliquot
