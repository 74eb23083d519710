// Tests of ranks that share one simulated GPU. They read one another's parameters in place.
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"

namespace aliquot {
namespace {

using namespace testing_model;

const WorldOptions kOneGpu{.device = DeviceChoice::kCuda, .timeout_seconds = 60};

TEST(OneSimulatedGpu, ViewsGiveTheBitsOfCopiesAndOfHosts) {
  for (const int ranks : {1, 2, 3}) {
    for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
      for (const int accumulate : {1, 2}) {
        Settings settings;
        settings.options = {.zero_stage = 3, .precision = {.compute = compute}, .accumulate = accumulate, .clip = 0.5};
        settings.steps = 3;
        const Outcome reference = train_without_engine(ranks, settings);
        for (const GatherMode gather : {GatherMode::kAuto, GatherMode::kView, GatherMode::kCopy}) {
          settings.options.gather = gather;
          EXPECT_TRUE(train_on(ranks, settings, kOneGpu) == reference)
              << ranks << ' ' << enum_name(kGatherWords, gather);
        }
      }
    }
  }
}

/// Also expects that the measured memory equals the planned memory.
TEST(OneSimulatedGpu, ViewsWorkWithPipelinesAndReplicas) {
  for (const EngineOptions& options :
       {EngineOptions{.zero_stage = 3, .accumulate = 2, .pipeline = 2, .accumulate_into = AccumulateInto::kShard},
        EngineOptions{.zero_stage = 3, .replicas = 2}}) {
    const Trained reference = train_by_passes(4, options, kHosts);
    EXPECT_TRUE(train_by_passes(4, options, kOneGpu) == reference) << describe(options);
  }
}

TEST(OneSimulatedGpu, GathersAreViewsByDefault) {
  World::threads(
      2,
      [](World& world) {
        EngineWithModel setup(world, Settings{.options = {.zero_stage = 3}});
        EXPECT_TRUE(setup.engine.plan().schedule.view);
      },
      kOneGpu);
}

}  // namespace
}  // namespace aliquot
