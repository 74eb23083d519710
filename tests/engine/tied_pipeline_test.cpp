// Tests of training on a pipeline with a model whose first and last use share a unit, like a token embedding that is
// tied to the head.
#include <gtest/gtest.h>
#include <optional>

#include "tests/engine/blocks_training.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/all_cases.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

std::vector<int> cut_of(int stages) { return testing_model::cut_of(stages, true); }

Trained train(int data_ranks, const EngineOptions& options, const WorldOptions& world = kHosts) {
  return train_by_passes(data_ranks, options, world, true);
}

/// Calls `with` for 2, 3 and 4 pipeline stages, with the orders of passes of for_schedules().
template <typename With>
void for_pipelines(const EngineOptions& options, const With& with) {
  for (const int stages : {2, 3, 4}) for_schedules(options, stages, true, with);
}

/// If the gradients of each micro-batch are reduced, they are added in the same order as without a pipeline. The
/// gradients of both uses are added within each micro-batch.
TEST(TiedPipeline, DoesNotChangeResultsIfMicroBatchesAreAddedInTheShard) {
  EXPECT_EQ(expect_one_result(true), test::runs_all_cases() ? 320 : 107);
}

/// If full gradients are accumulated, all gradients of the last use are added before those of the first use. The result
/// is the same for all pipelines, but may differ in its last bits from the result without a pipeline.
TEST(TiedPipeline, GivesOneResultForAllPipelinesIfMicroBatchesAreAddedInFullGradients) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    const EngineOptions options{.zero_stage = zero_stage, .accumulate = 5, .accumulate_into = AccumulateInto::kFull};
    const Trained alone = train(2, options);
    std::optional<Trained> first;
    test::CaseSelection selection(3, zero_stage % 3);
    for_pipelines(options, [&](const EngineOptions& pipelined) {
      if (!selection.next()) return;
      const Trained own = train(2, pipelined);
      if (!first) first = own;
      EXPECT_TRUE(own == *first) << describe(pipelined);
    });
    ASSERT_EQ(first->parameters.size(), alone.parameters.size());
    for (std::size_t i = 0; i < alone.parameters.size(); ++i)
      EXPECT_NEAR(first->parameters[i], alone.parameters[i], 1e-5f);
  }
}

TEST(TiedPipeline, DoesNotChangeResultsWithOtherOptions) {
  const EngineOptions all[] = {
      {.recompute = 3},
      {.zero_stage = 0, .reproducible = true},
      {.replicas = 2, .reproducible = true},
      {.zero_stage = 0, .replicas = 2},
      {.zero_stage = 2, .replicas = 2},
      {.zero_stage = 3, .prefetch = 3, .keep_gathered = 3, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather_for = kGatherForStep, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather_for = 2, .gather = GatherMode::kCopy},
      {.zero_stage = 1, .update_in_backward = true, .clip = 0},
      {.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0},
      {.zero_stage = 3, .quantize_weights = true},
      {.zero_stage = 3, .optimizer = Muon{}},
      {.zero_stage = 0, .optimizer = Muon{}},
      {.zero_stage = 3, .check = true},
      {.zero_stage = 0, .recompute = 3, .check = true},
      {.zero_stage = 3,
       .precision = {.compute = DType::kFloat32, .gradients = DType::kFloat32, .reduce = DType::kBFloat16}},
      {.zero_stage = 3, .offload_state = Offload::kHost, .offload_parameters = Offload::kHost}};
  test::CaseSelection selection(3);
  for (EngineOptions options : all) {
    options.accumulate = 4;
    options.accumulate_into = AccumulateInto::kShard;
    const Trained reference = train(4, options);
    for_pipelines(options, [&](const EngineOptions& pipelined) {
      if (!selection.next()) return;
      EXPECT_TRUE(train(4, pipelined) == reference) << describe(pipelined);
    });
  }
}

TEST(TiedPipeline, AdversarialSchedulingDoesNotChangeResults) {
  for (const int zero_stage : {0, 1, 3}) {
    const EngineOptions options{.zero_stage = zero_stage,
                                .accumulate = 4,
                                .accumulate_into = AccumulateInto::kShard,
                                .recompute = 2,
                                .gather = GatherMode::kCopy};
    const Trained reference = train(2, options);
    for_pipelines(options, [&](const EngineOptions& pipelined) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        AdversarialScheduler adversary(
            seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
        const WorldOptions world{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
        EXPECT_TRUE(train(2, pipelined, world) == reference) << "seed " << seed << ", " << describe(pipelined);
      }
    });
  }
}

/// For each micro-batch, the last pipeline stage keeps full gradients of the shared unit from the backward of its last
/// use to the backward of its first use. At most as many of these gradients exist as there are pipeline stages. Other
/// pipeline stages have no gradients of this unit.
TEST(TiedPipeline, OnlyTheLastStageHoldsTheSharedUnit) {
  for (const int stages : {2, 3, 4}) {
    World::threads(
        stages,
        [&](World& world) {
          EngineWithBlocks setup(
              world,
              {.zero_stage = 3, .accumulate = 9, .pipeline = stages, .pipeline_cut = cut_of(stages), .prefetch = 0},
              true);
          const Plan& plan = setup.engine.plan();
          EXPECT_EQ(plan.unit_is_here[0], plan.stage.is_last());
          EXPECT_TRUE(plan.stage.tied_ends);
          int most = 0;
          for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
            const auto exists = [&](const PlannedBuffer& buffer) {
              return buffer.role == Role::kGradients && plan.flats[buffer.flat].unit == 0 && buffer.first <= id &&
                     id <= buffer.last;
            };
            most = std::max(most, static_cast<int>(std::ranges::count_if(plan.schedule.buffers, exists)));
          }
          EXPECT_LE(most, plan.stage.is_last() ? stages : 0);
          EXPECT_GE(most, plan.stage.is_last() ? 2 : 0);
        },
        kHosts);
  }
}

TEST(TiedPipeline, EvaluationRunsTheFirstAndTheLastUse) {
  World::threads(
      2,
      [&](World& world) {
        EngineWithBlocks setup(world, {.pipeline = 2, .pipeline_cut = cut_of(2)}, true);
        auto& [blocks, engine] = setup;
        std::vector<int> uses;
        while (const auto work = engine.next_evaluation()) {
          uses.push_back(work->use);
          blocks.forward(engine, work->memory(), 0.5);
        }
        EXPECT_EQ(uses, world.rank() == 0 ? (std::vector{1, 2}) : (std::vector{0, 3, 4}));
        run_step(setup, 0.25);
        EXPECT_FALSE(engine.step().skipped);
      },
      kHosts);
}

std::string refusal(const EngineOptions& options) {
  std::string message;
  World::threads(
      2,
      [&](World& world) {
        const std::string own = test::usage_error_message([&] { EngineWithBlocks setup(world, options, true); });
        if (world.rank() == 0) message = own;
      },
      kHosts);
  return message;
}

TEST(TiedPipeline, ACutThatLeavesNoUseForTheFirstStageIsRefused) {
  EXPECT_NE(refusal({.pipeline = 2, .pipeline_cut = {1, 4}}).find("unit h.0 is used on pipeline stages 0 and 1"),
            std::string::npos);
}

/// The default cut gives the first pipeline stage at least one use that is not tied.
TEST(TiedPipeline, TheDefaultCutIsPossible) {
  World::threads(
      4,
      [&](World& world) {
        EngineWithBlocks setup(world, {.pipeline = 4}, true);
        EXPECT_EQ(setup.engine.plan().stage.use_count(), world.rank() == 3 ? 2 : 1);
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
