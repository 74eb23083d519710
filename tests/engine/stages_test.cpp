// Tests that training gives the same bits as the reference without an engine, and memory use equals the plan. This
// holds for every ZeRO stage, world size, accumulation, prefetch depth and gather mode.
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/delaying_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Row {
  int rank_count, zero_stage, accumulate;
  AccumulateInto into;
  int prefetch;
  GatherMode gather;
};

std::string row_name(const Row& row) {
  return std::to_string(row.rank_count) + "Ranks_Stage" + std::to_string(row.zero_stage) + "_Accumulate" +
         std::to_string(row.accumulate) + (row.into == AccumulateInto::kFull ? "Full" : "Shard") + "_Prefetch" +
         std::to_string(row.prefetch) + (row.gather == GatherMode::kCopy ? "_Copy" : "_View");
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int accumulate : {1, 3}) {
        for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
          for (const int prefetch : {0, 1, 3}) {
            for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
              const bool repeats = stage < 3 && (prefetch == 3 || gather == GatherMode::kView);
              if (!repeats && (accumulate > 1 || into == AccumulateInto::kFull))
                all.push_back({ranks, stage, accumulate, into, prefetch, gather});
            }
          }
        }
      }
    }
  }
  return all;
}

Settings settings_of(const Row& row) {
  Settings settings;
  settings.options = {.zero_stage = row.zero_stage,
                      .accumulate = row.accumulate,
                      .accumulate_into = row.into,
                      .prefetch = row.prefetch,
                      .gather = row.gather,
                      .clip = 0.5};
  return settings;
}

class EveryStage : public testing::TestWithParam<Row> {};

TEST_P(EveryStage, IsBitwiseIdenticalToTheReference) {
  const Settings settings = settings_of(GetParam());
  const Outcome reference = train_without_engine(GetParam().rank_count, settings);
  EXPECT_GT(reference.norms[0], settings.options.clip) << "clipping is not exercised";
  EXPECT_LT(reference.losses.back(), reference.losses.front() * 1.5);
  World::threads(GetParam().rank_count,
                 [&](World& world) { EXPECT_EQ(train(world, settings), reference) << "rank " << world.rank(); },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

TEST_P(EveryStage, UsesThePlannedMemory) {
  const Settings settings = settings_of(GetParam());
  World::threads(GetParam().rank_count,
                 [&](World& world) {
                   SmallModel model;
                   Engine engine(world, settings.options);
                   declare(engine, model);
                   for (int step = 0; step < 2; ++step) {
                     for (int m = 0; m < settings.options.accumulate; ++m)
                       train_micro_batch(engine, model, step, m, world.rank());
                     EXPECT_FALSE(engine.step().skipped);
                   }
                   const Account planned = account(engine.plan().schedule);
                   EXPECT_EQ(world.device().ledger().peak(), planned.peak);
                   EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes);
                   EXPECT_GE(
                       engine.plan().schedule.bytes(Space::kArena) + engine.plan().schedule.bytes(Space::kSharedRange),
                       planned.step_peak_bytes);
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, testing::ValuesIn(rows()),
                         [](const auto& test) { return row_name(test.param); });

/// Progress counters that the first engine published must not satisfy waits of the second engine.
TEST(Stages, SecondEngineInTheSameWorldGivesTheSameResults) {
  for (const int stage : {0, 1, 2, 3}) {
    const Settings settings = settings_of({3, stage, 1, AccumulateInto::kFull, 1, GatherMode::kCopy});
    const Outcome reference = train_without_engine(3, settings);
    World::threads(3,
                   [&](World& world) {
                     for (int engine = 0; engine < 3; ++engine)
                       EXPECT_EQ(train(world, settings), reference) << "ZeRO stage " << stage << ", engine " << engine;
                   },
                   {.device = DeviceChoice::kHost, .timeout_seconds = 60});
  }
}

/// The adversarial device runs queued work in any order that the waits of the schedule allow.
TEST(Stages, AdversarialSchedulingDoesNotChangeResults) {
  for (const int rank_count : {2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
        Settings settings = settings_of({rank_count, stage, 2, AccumulateInto::kShard, 1, gather});
        settings.steps = 3;
        const Outcome reference = train_without_engine(rank_count, settings);
        for (uint64_t seed = 0; seed < 40; ++seed) {
          // For odd seeds, compute work is queued too, as on a GPU.
          AdversarialScheduler adversary(
              seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
          World::threads(rank_count,
                         [&](World& world) {
                           EXPECT_EQ(train(world, settings), reference)
                               << "seed " << seed << ", ZeRO stage " << stage << ", rank " << world.rank();
                         },
                         {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
        }
      }
    }
  }
}

/// Delays the gather, reduce or compute lane, or all lanes, on all ranks or on one rank.
TEST(Stages, DelaysDoNotChangeResults) {
  const std::vector<std::vector<Lane>> delayed_lanes = {
      {Lane::kGather}, {Lane::kReduce}, {Lane::kCompute}, {Lane::kGather, Lane::kReduce, Lane::kCompute, Lane::kIo}};
  uint64_t seed = 0;
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
      if (stage < 3 && gather == GatherMode::kView) continue;
      for (const bool offloaded : {false, true}) {
        if (offloaded && gather == GatherMode::kView) continue;
        Settings settings = settings_of({3, stage, 2, AccumulateInto::kShard, 1, gather});
        settings.steps = 3;
        const Outcome reference = train_without_engine(3, settings);
        if (offloaded) settings.options.offload_state = Offload::kHost;
        for (std::size_t which = 0; which < 2 * delayed_lanes.size(); ++which) {
          ++seed;
          const bool on_one = which >= delayed_lanes.size();
          const auto make_device = [&](int rank) -> std::unique_ptr<Device> {
            if (on_one && rank != static_cast<int>(seed % 3)) return make_host_device(1);
            return std::make_unique<test::DelayingDevice>(delayed_lanes[which % delayed_lanes.size()],
                                                          std::chrono::microseconds(200),
                                                          seed * 31 + static_cast<uint64_t>(rank));
          };
          EXPECT_EQ(train_on(3, settings, {.timeout_seconds = 60, .make_device = make_device}), reference)
              << "ZeRO stage " << stage << ", delays " << which << ", seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
