// Tests of tensor groups. The ranks of a tensor group read the same samples and hold the same parameters. So results
// are bitwise identical to those with one rank in place of each tensor group. Memory use equals the plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Layout {
  int data_ranks, replicas, tensor;
};
constexpr Layout kLayouts[] = {{1, 1, 2}, {1, 1, 3}, {2, 1, 2}, {2, 2, 2}, {3, 1, 2}, {4, 2, 2}, {2, 1, 4}};

Settings in_tensor_groups(Settings settings, const Layout& layout) {
  settings.options.replicas = layout.replicas;
  settings.options.tensor = layout.tensor;
  return settings;
}

std::string text(const Layout& layout, int stage) {
  return fmt::format("{} data ranks, {} replicas, {} ranks in a tensor group, ZeRO stage {}", layout.data_ranks,
                     layout.replicas, layout.tensor, stage);
}

TEST(TensorGroups, OfFullParametersDoNotChangeResults) {
  for (const Layout& layout : kLayouts) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
        if (gather == GatherMode::kView && stage < 3) continue;
        Settings settings;
        settings.options = {
            .zero_stage = stage, .replicas = layout.replicas, .accumulate = 2, .gather = gather, .clip = 0.5};
        EXPECT_TRUE(train_on(layout.data_ranks * layout.tensor, in_tensor_groups(settings, layout)) ==
                    train_on(layout.data_ranks, settings))
            << text(layout, stage);
      }
    }
  }
}

TEST(TensorGroups, ReproducibleResultsDependOnTheDataRanksOnly) {
  for (const int stage : {0, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 4, .reproducible = true};
    const Outcome reference = train_on(4, settings);
    for (const Layout& layout : {Layout{4, 1, 2}, Layout{4, 2, 2}, Layout{4, 4, 2}}) {
      EXPECT_TRUE(train_on(8, in_tensor_groups(settings, layout)) == reference) << text(layout, stage);
    }
  }
}

TEST(TensorGroups, AdversarialSchedulingDoesNotChangeResults) {
  Settings settings;
  settings.options = {.zero_stage = 3, .accumulate = 2, .gather = GatherMode::kCopy};
  settings.steps = 3;
  const Outcome reference = train_on(2, settings);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    const auto options =
        WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
    EXPECT_TRUE(train_on(4, in_tensor_groups(settings, {2, 1, 2}), options) == reference) << "seed " << seed;
  }
}

TEST(TensorGroups, UseThePlannedMemory) {
  for (const Layout& layout : kLayouts) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(text(layout, stage));
      Settings settings;
      settings.options = {.zero_stage = stage, .accumulate = 2};
      settings = in_tensor_groups(settings, layout);
      World::threads(
          layout.data_ranks * layout.tensor, [&](World& world) { expect_planned_memory(world, settings); }, kHosts);
    }
  }
}

TEST(TensorGroups, FreezeAndEvaluate) {
  Settings settings;
  const std::vector<double> reference = freeze_and_evaluate(2, settings);
  EXPECT_EQ(freeze_and_evaluate(4, in_tensor_groups(settings, {2, 1, 2})), reference);
}

TEST(TensorGroups, MustDivideThePipelineStage) {
  World::threads(
      4,
      [](World& world) {
        EXPECT_EQ(test::usage_error_message([&] { Engine(world, {.tensor = 3, .pipeline = 2}); }),
                  "EngineOptions::tensor is 3: expected a divisor of the number of ranks of each pipeline stage, 2");
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
