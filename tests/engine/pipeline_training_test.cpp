// Tests of training on several pipeline stages. Results are bitwise identical to those of one pipeline stage, for every
// number of pipeline stages, order of passes and ZeRO stage. Memory use equals the plan on every rank.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/all_cases.h"
#include "tests/support/scoped_ranks_per_node.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

std::vector<int> cut_of(int stages) { return testing_model::cut_of(stages, false); }

TEST(PipelineTraining, DoesNotChangeResults) {
  EXPECT_EQ(expect_one_result(false), test::runs_all_cases() ? 320 : 107);
}

TEST(PipelineTraining, DoesNotChangeResultsWithOtherOptions) {
  const EngineOptions all[] = {
      {.recompute = 3},
      {.reproducible = true},
      {.replicas = 2, .reproducible = true},
      {.zero_stage = 2, .replicas = 2},
      {.accumulate_into = AccumulateInto::kFull},
      {.zero_stage = 3, .prefetch = 3, .keep_gathered = 3, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather_for = kGatherForStep, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather_for = 2, .gather = GatherMode::kCopy},
      {.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0},
      {.zero_stage = 3, .quantize_weights = true},
      {.zero_stage = 3, .optimizer = Muon{}},
      {.zero_stage = 0, .optimizer = Muon{}},
      {.zero_stage = 3, .check = true},
      {.zero_stage = 3, .recompute = 3, .gather = GatherMode::kCopy, .check = true},
      {.zero_stage = 3, .offload_state = Offload::kHost, .offload_parameters = Offload::kHost}};
  test::CaseSelection selection(3);
  for (EngineOptions options : all) {
    options.accumulate = 4;
    const Trained reference = train_by_passes(4, options);
    for (const int stages : {2, 5}) {
      options.pipeline = stages;
      options.pipeline_cut = cut_of(stages);
      for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
        options.pipeline_schedule = schedule;
        if (!selection.next()) continue;
        EXPECT_TRUE(train_by_passes(4, options) == reference) << describe(options);
      }
    }
  }
}

TEST(PipelineTraining, AdversarialSchedulingDoesNotChangeResults) {
  for (const int zero_stage : {0, 2, 3}) {
    EngineOptions options{
        .zero_stage = zero_stage, .accumulate = 4, .accumulate_into = AccumulateInto::kShard, .recompute = 2};
    const Trained reference = train_by_passes(2, options);
    using enum PipelineSchedule;
    for (const auto schedule : {k1F1B, kGpipe, kZeroBubble, kInterleaved}) {
      options.pipeline = schedule == kInterleaved ? 2 : 3;
      options.pipeline_cut = cut_of(schedule == kInterleaved ? 4 : 3);
      options.pipeline_schedule = schedule;
      for (uint64_t seed = 0; seed < 8; ++seed) {
        AdversarialScheduler adversary(
            seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
        EXPECT_TRUE(train_by_passes(2, options,
                                    {.timeout_seconds = 60,
                                     .make_device = [&](int) { return adversary.make_device(); }}) == reference)
            << "seed " << seed << ", " << describe(options);
      }
    }
  }
}

/// With m micro-batches and p pipeline stages, 1F1B keeps min(m, p - s) micro-batches in flight on pipeline stage s.
/// GPipe keeps m. A pipeline stage may have received the input of one more micro-batch.
TEST(PipelineTraining, SavedActivationsAreThoseOfTheMicroBatchesInFlight) {
  for (const int stages : {2, 3, 5}) {
    for (const int micro_batches : {1, 2, 4, 9}) {
      for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe}) {
        World::threads(
            stages,
            [&](World& world) {
              EngineWithBlocks setup(world, {.accumulate = micro_batches,
                                             .pipeline = stages,
                                             .pipeline_schedule = schedule,
                                             .pipeline_cut = cut_of(stages),
                                             .recompute = 0});
              const Plan& plan = setup.engine.plan();
              int most = 0, saved = 0;
              for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
                saved = static_cast<int>(std::ranges::count_if(plan.schedule.buffers, [&](const PlannedBuffer& buffer) {
                  return buffer.role == Role::kSavedActivations && buffer.first <= id && id <= buffer.last;
                }));
                most = std::max(most, saved);
              }
              const int uses = plan.stage.use_count();
              const int in_flight = schedule == PipelineSchedule::kGpipe
                                        ? micro_batches
                                        : std::min(micro_batches, stages - plan.stage.index);
              EXPECT_EQ(most, in_flight * uses);
              EXPECT_LE(plan.schedule.micro_batches_in_flight, in_flight + 1);
            },
            kHosts);
      }
    }
  }
}

/// On p pipeline stages with zero bubble, stage s has p micro-batches in flight: p - s before the first part of their
/// backward, and s between the two parts. Between the parts, it keeps only what the second part reads.
TEST(PipelineTraining, ZeroBubbleKeepsWhatTheSecondPartsNeed) {
  for (const int stages : {2, 3}) {
    for (const int micro_batches : {1, 2, 4, 9}) {
      World::threads(
          stages,
          [&](World& world) {
            EngineWithBlocks setup(world, {.accumulate = micro_batches,
                                           .pipeline = stages,
                                           .pipeline_schedule = PipelineSchedule::kZeroBubble,
                                           .pipeline_cut = cut_of(stages),
                                           .recompute = 0});
            const Plan& plan = setup.engine.plan();
            const int s = plan.stage.index;
            const VirtualStage& run = plan.stage.runs.front();
            int split = 0;
            for (int use = run.first_use; use < run.end_use; ++use) split += setup.blocks.splits(use) ? 1 : 0;
            const auto most_of = [&](Role role) {
              int most = 0;
              for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
                const auto exists = [&](const PlannedBuffer& buffer) {
                  return buffer.role == role && buffer.first <= id && id <= buffer.last;
                };
                most = std::max(most, static_cast<int>(std::ranges::count_if(plan.schedule.buffers, exists)));
              }
              return most;
            };
            const int between_parts = s == 0 ? 0 : std::min(micro_batches, s + 1);
            EXPECT_EQ(most_of(Role::kWeightInputs), between_parts * split);
            const int with_forward = std::min(micro_batches, stages - s);
            EXPECT_LE(most_of(Role::kSavedActivations),
                      with_forward * plan.stage.use_count() + std::min(micro_batches, s) * split);
          },
          kHosts);
    }
  }
}

/// The larger `gather_for` is, the fewer gathers a step has. With kGatherForStep, a step gathers each unit once.
TEST(PipelineTraining, GatherForSetsTheNumberOfGathers) {
  constexpr int kMicroBatches = 6;
  std::vector<std::ptrdiff_t> gathers;
  for (const int gather_for : {kGatherForPass, 1, 2, 3, kGatherForStep}) {
    World::threads(
        2,
        [&](World& world) {
          EngineWithBlocks setup(world, {.zero_stage = 3,
                                         .accumulate = kMicroBatches,
                                         .pipeline = 2,
                                         .pipeline_cut = cut_of(2),
                                         .gather_for = gather_for,
                                         .gather = GatherMode::kCopy});
          if (world.rank() == 1) return;
          const auto& operations = setup.engine.plan().schedule.operations;
          gathers.push_back(std::ranges::count(operations, Verb::kGather, &Operation::verb));
        },
        kHosts);
  }
  constexpr int kUnits = 2;  // number of units on pipeline stage 0
  EXPECT_EQ(gathers.back(), kUnits);
  for (std::size_t i = 1; i < gathers.size(); ++i) EXPECT_LT(gathers[i], gathers[i - 1]) << i;
  EXPECT_LE(gathers.front(), 2 * kMicroBatches * kUnits);
}

/// The ranks of a pipeline stage within one node read shards in place. A pipeline stage that spans nodes gathers copies
/// of the shards.
TEST(PipelineTraining, StagesMaySpanDifferentNumbersOfNodes) {
  const EngineOptions options{.zero_stage = 3, .accumulate = 4};
  for (const bool tied : {false, true}) {
    const Trained reference = train_by_passes(2, options, kHosts, tied);
    const test::ScopedRanksPerNode three(3);
    for_schedules(options, 3, tied, [&](const EngineOptions& pipelined) {
      EXPECT_TRUE(train_by_passes(2, pipelined, kHosts, tied) == reference) << describe(pipelined);
    });
  }
}

/// Freezing moves no unit to another pipeline stage, even if the memory budget determines the cut.
TEST(PipelineTraining, FreezingBetweenStepsDoesNotChangeResults) {
  const auto train = [](int stages, int64_t budget_bytes, PipelineSchedule schedule = PipelineSchedule::k1F1B) {
    std::vector<float> parameters;
    World::threads(
        stages,
        [&](World& world) {
          EngineWithBlocks setup(world, {.zero_stage = 2,
                                         .accumulate = 4,
                                         .pipeline = stages,
                                         .pipeline_schedule = schedule,
                                         .memory_budget_bytes = budget_bytes});
          auto& engine = setup.engine;
          const std::vector<int> cut = engine.plan().policy.pipeline_cut;
          const PipelineSchedule chosen = engine.plan().policy.pipeline_schedule;
          for (int step = 0; step < 4; ++step) {
            for (int i = 0; i < kBlocks; ++i) {
              setup.blocks.frozen[i] = (step == 1 && i == 1) || (step == 2 && i != 4);
              engine.set_trainable(fmt::format("h.{}.", i), !setup.blocks.frozen[i]);
            }
            run_step(setup, step);
            EXPECT_FALSE(engine.step().skipped);
            EXPECT_EQ(engine.plan().policy.pipeline_cut, cut);
            EXPECT_EQ(engine.plan().policy.pipeline_schedule, chosen);
          }
          std::vector<float> own;
          for (int i = 0; i < kBlocks; ++i) {
            const auto full = engine.read(fmt::format("h.{}.a", i));
            own.insert(own.end(), full.begin(), full.end());
          }
          if (world.rank() == 0) parameters = own;
        },
        kHosts);
    return parameters;
  };
  const std::vector<float> alone = train(1, 0);
  for (const int stages : {2, 3, 5}) {
    EXPECT_EQ(train(stages, 0), alone) << stages;
    EXPECT_EQ(train(stages, int64_t{1} << 20), alone) << stages;
    EXPECT_EQ(train(stages, int64_t{1} << 20, PipelineSchedule::kZeroBubble), alone) << stages;
    EXPECT_EQ(train(stages, 0, PipelineSchedule::kAuto), alone) << stages;
  }
  EXPECT_EQ(train(2, int64_t{1} << 20, PipelineSchedule::kInterleaved), alone);
}

/// An evaluation always starts at its first use. This also holds after an evaluation that was abandoned, and after one
/// whose caller stopped before next_evaluation() returned nullopt.
TEST(PipelineTraining, EveryEvaluationRunsAllUses) {
  World::threads(
      2,
      [&](World& world) {
        EngineWithBlocks setup(world, {.pipeline = 2, .pipeline_cut = cut_of(2)});
        auto& [blocks, engine] = setup;
        const int uses = engine.plan().stage.use_count();
        const auto evaluate = [&](int most) {
          int count = 0;
          while (count < most) {
            const auto work = engine.next_evaluation();
            if (!work) break;
            blocks.forward(engine, work->memory(), 0.5);
            ++count;
          }
          return count;
        };
        EXPECT_EQ(evaluate(100), uses);
        EXPECT_EQ(evaluate(1), 1);
        engine.abandon();
        EXPECT_EQ(evaluate(100), uses);
        EXPECT_EQ(evaluate(uses), uses);  // stops before the call that returns nullopt
        run_step(setup, 0.25);
        EXPECT_FALSE(engine.step().skipped);
        EXPECT_EQ(evaluate(100), uses);
      },
      kHosts);
}

std::string refusal(int ranks, const EngineOptions& options) {
  std::string message;
  World::threads(
      ranks,
      [&](World& world) {
        const std::string own = test::usage_error_message([&] { EngineWithBlocks setup(world, options); });
        if (world.rank() == 0) message = own;
      },
      kHosts);
  return message;
}

/// Returns the error message for a model of two units with the given activations on two pipeline stages.
std::string refusal_of(const ActivationSpec& activations) {
  std::string message;
  World::threads(
      2,
      [&](World& world) {
        const std::string own = test::usage_error_message([&] {
          float* pointers[4] = {};
          Engine engine(world, {.pipeline = 2});
          engine.add_unit("a").add("w", {8}, &pointers[0], &pointers[1]);
          engine.add_unit("b").add("w", {8}, &pointers[2], &pointers[3]);
          if (!activations.uses.empty()) engine.declare_activations(activations);
          engine.materialize([](const ParameterSpec&, int64_t, std::span<float> to) { std::ranges::fill(to, 0.0f); });
        });
        if (world.rank() == 0) message = own;
      },
      kHosts);
  return message;
}

TEST(PipelineTraining, ActivationsThatTheEngineCannotSendAreRefused) {
  const std::string undeclared = refusal_of({});
  EXPECT_NE(undeclared.find("declare them with Engine::declare_activations()"), std::string::npos) << undeclared;
  ActivationSpec spec;
  spec.uses = {{.output_bytes = 0}, {.output_bytes = 64}};
  EXPECT_NE(refusal_of(spec).find("ActivationSpec::backward_bytes is 0"), std::string::npos) << refusal_of(spec);
  spec.backward_bytes = 64;
  EXPECT_NE(refusal_of(spec).find("sends the output of use 0 (a), which declares an output of 0 bytes"),
            std::string::npos)
      << refusal_of(spec);
}

TEST(PipelineTraining, InvalidPipelinesAreRefused) {
  EXPECT_NE(refusal(2, {.pipeline = 3}).find("EngineOptions::pipeline is 3: expected a divisor of the number of ranks"),
            std::string::npos);
  EXPECT_NE(refusal(2, {.pipeline = 2, .pipeline_cut = {2, 2}}).find("has 4 uses in all, but the model has 5"),
            std::string::npos);
  EXPECT_NE(refusal(2, {.pipeline = 2, .pipeline_cut = {5, 0}}).find("gives a virtual stage 0 uses"),
            std::string::npos);
  EXPECT_NE(refusal(2, {.pipeline = 2, .pipeline_cut = {5}}).find("has 1 numbers, but EngineOptions::pipeline is 2"),
            std::string::npos);
}

/// If a unit had uses on two virtual stages of a pipeline stage, its gradients would be added in a different order than
/// without a pipeline.
TEST(PipelineTraining, AUnitOnTwoVirtualStagesIsRefused) {
  ModelSpec model = testing::chain(3, 1024);
  model.uses = {{0}, {1}, {0}, {2}};
  model.activations = {.uses = std::vector<UseActivations>(4, {.output_bytes = 64}), .backward_bytes = 64};
  const Policy policy{.pipeline = 2,
                      .pipeline_schedule = PipelineSchedule::kInterleaved,
                      .virtual_stages = 2,
                      .pipeline_cut = {1, 1, 1, 1}};
  const std::string refusal = test::usage_error_message([&] { plan_pipeline(model, policy, Topology::one_host(2)); });
  EXPECT_NE(refusal.find("unit h.0 is used on two virtual stages of pipeline stage 0"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace aliquot
