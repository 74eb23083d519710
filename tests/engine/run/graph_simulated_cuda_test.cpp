// Tests of Engine::run_passes() on simulated GPUs: steps with graphs give the results of steps without.
#include <array>
#include <cmath>
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"
#include "tests/engine/run/graph_training.h"
#include "tests/engine/split_blocks.h"

namespace aliquot {
namespace {

using namespace testing_model;

TEST_F(Graphs, GiveTheBitsOfStepsWithoutGraphs) {
  const Precision mixed{.compute = DType::kBFloat16, .master = MasterForm::kFp32};
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int accumulate : {1, 2}) {
        Settings settings;
        settings.options = {.zero_stage = stage,
                            .precision = stage % 2 == 0 ? Precision{} : mixed,
                            .accumulate = accumulate,
                            .clip = 0.5};
        const TrainingResult without = train_small(ranks, settings, GraphMode::kOff);
        const int64_t before = simulated::launched_graphs();
        const TrainingResult with = train_small(ranks, settings, GraphMode::kOn);
        EXPECT_TRUE(with.outcome == without.outcome) << ranks << " ranks, ZeRO stage " << stage;
        EXPECT_EQ(simulated::launched_graphs() - before, ranks * (kSteps - 1));
        EXPECT_EQ(without.calls, kSteps);
        EXPECT_EQ(with.calls, 2);  // one step without a graph, and the capture
      }
    }
  }
}

/// With slow streams, results change if a graph does not wait for the previous step, or if later operations do not wait
/// for the graph.
TEST_F(Graphs, WaitForAllLanesAndAreAwaitedByThem) {
  simulated::set_longest_delay(20000);
  for (const int stage : {1, 3}) {
    std::array<TrainingResult, 2> results;
    for (const GraphMode graph : {GraphMode::kOff, GraphMode::kOn}) {
      World::threads(
          2,
          [&](World& world) {
            SmallTrainer training(world, {.options = {.zero_stage = stage, .clip = 0.5, .graph = graph}});
            training.sums_losses = false;
            for (int step = 0; step < kSteps; ++step) training.step(step);
            const TrainingResult own = training.finish();
            if (world.rank() == 0) results[graph == GraphMode::kOn ? 1 : 0] = own;
          },
          gpus(2));
    }
    EXPECT_TRUE(results[0].outcome == results[1].outcome) << "ZeRO stage " << stage;
  }
  simulated::set_longest_delay(200);
}

TEST_F(Graphs, GiveTheBitsOfStepsWithoutGraphsWithOtherOptions) {
  const Settings cases[] = {
      {.options = {.zero_stage = 3, .replicas = 2, .accumulate = 2}},
      {.options = {.zero_stage = 1, .replicas = 2, .accumulate = 2, .reproducible = true}},
      {.options = {.zero_stage = 3, .offload_state = Offload::kHost, .offload_parameters = Offload::kHost}},
      {.options = {.zero_stage = 3, .accumulate = 2, .quantize_weights = true}},
      {.options = {.zero_stage = 2, .prefetch = 0, .optimizer = Muon{}}},
      {.options = {.zero_stage = 3, .precision = {.compute = DType::kFloat16}, .keep_gathered = 2}},
  };
  for (const Settings& settings : cases) {
    const TrainingResult without = train_small(4, settings, GraphMode::kOff);
    const TrainingResult with = train_small(4, settings, GraphMode::kOn);
    EXPECT_TRUE(with.outcome == without.outcome) << &settings - cases;
    EXPECT_EQ(with.calls, 2) << &settings - cases;
  }
}

/// Trains a model with several pipeline stages. The samples are the same in each step.
Trained train_pipeline(int ranks, EngineOptions options, GraphMode graph) {
  options.graph = graph;
  Trained run;
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithBlocks setup(world, options);
        auto& [blocks, engine] = setup;
        const double own_sample = 0.01 * (world.rank() % (ranks / options.pipeline));
        Trained own;
        for (int step = 0; step < kSteps; ++step) {
          engine.run_passes([&] {
            while (const auto work = engine.next()) {
              const double sample = own_sample + 0.1 * work->micro_batch;
              blocks.select_sample(engine, sample);
              run_work(setup, *work, sample);
            }
          });
          own.norms.push_back(engine.step().gradient_norm);
          engine.compute_stream().synchronize();
          own.losses.push_back(blocks.loss);
        }
        own.parameters = read_blocks(setup);
        if (world.rank() == ranks - 1) run = own;
      },
      gpus(ranks));
  return run;
}

TEST_F(Graphs, IncludeTransfersBetweenPipelineStages) {
  EngineOptions options{.zero_stage = 3, .accumulate = 4, .accumulate_into = AccumulateInto::kShard, .recompute = 1};
  for_schedules(options, 2, false, [](const EngineOptions& pipelined) {
    const Trained without = train_pipeline(4, pipelined, GraphMode::kOff);
    EXPECT_TRUE(train_pipeline(4, pipelined, GraphMode::kOn) == without) << describe(pipelined);
  });
}

TEST_F(Graphs, IncludeCollectivesOfUses) {
  for (const int zero_stage : {1, 3}) {
    std::array<TensorTrained, 2> runs;
    for (const bool with_graph : {false, true}) {
      World::threads(
          4,
          [&](World& world) {
            Engine engine(world, {.zero_stage = zero_stage,
                                  .accumulate = 2,
                                  .tensor = 2,
                                  .graph = with_graph ? GraphMode::kOn : GraphMode::kOff});
            SplitBlocks blocks(engine, world.rank(), 2);
            TensorTrained own;
            for (int step = 0; step < kSteps; ++step) {
              engine.run_passes([&] {
                while (const auto work = engine.next())
                  blocks.run(*work, 0.1 * work->micro_batch + 0.01 * (world.rank() / 2));
              });
              own.norms.push_back(engine.step().gradient_norm);
              engine.compute_stream().synchronize();
              own.losses.push_back(blocks.loss());
              while (const auto work = engine.next_evaluation()) blocks.run(*work, 0.7);
              engine.compute_stream().synchronize();
              own.losses.push_back(blocks.loss());
            }
            own.parameters = read_split_blocks(engine);
            if (world.rank() == 0) runs[with_graph ? 1 : 0] = own;
          },
          gpus(4));
    }
    EXPECT_TRUE(runs[0] == runs[1]) << "ZeRO stage " << zero_stage;
  }
}

TEST_F(Graphs, AreCapturedAgainWhenTheLossScaleChanges) {
  Settings settings{.options = {.zero_stage = 2, .precision = {.compute = DType::kFloat16}}};
  settings.options.loss_scaling = {.initial_scale_power = 4, .loss_scale_window = 2};
  const TrainingResult without = train_small(2, settings, GraphMode::kOff);
  const TrainingResult with = train_small(2, settings, GraphMode::kOn);
  EXPECT_TRUE(with.outcome == without.outcome);
  EXPECT_EQ(with.calls, 4);  // the scale doubles after steps 2 and 4
}

TEST_F(Graphs, AreCapturedAgainAfterSetTrainable) {
  std::array<TrainingResult, 2> runs;
  for (const GraphMode graph : {GraphMode::kOff, GraphMode::kOn}) {
    World::threads(
        2,
        [&](World& world) {
          SmallTrainer training(world, {.options = {.zero_stage = 3, .graph = graph}});
          for (int step = 0; step < 8; ++step) {
            if (step % 3 == 2) {
              const bool trainable = step % 2 == 1;
              training.engine().set_trainable("layer.0", trainable);
              training.model().frozen[1] = training.model().frozen[2] = !trainable;
            }
            training.step(step);
          }
          const TrainingResult own = training.finish();
          if (world.rank() == 0) runs[graph == GraphMode::kOn ? 1 : 0] = own;
        },
        gpus(2));
  }
  EXPECT_TRUE(runs[0].outcome == runs[1].outcome);
  EXPECT_EQ(runs[1].calls, 6);  // two for each set of trainable parameters
}

/// In the step after a gradient that is not finite, each rank searches its gradients. A graph does not do that.
TEST_F(Graphs, PauseInTheStepAfterAGradientThatIsNotFinite) {
  const Settings settings{.options = {.zero_stage = 3}};
  const auto poisons = [](SmallTrainer& training, int step) { training.poison = step == 3; };
  const TrainingResult without = train_with(settings, GraphMode::kOff, poisons);
  const TrainingResult with = train_with(settings, GraphMode::kOn, poisons);
  EXPECT_TRUE(with.outcome.parameters == without.outcome.parameters);
  EXPECT_EQ(with.calls, 3);
}

TEST_F(Graphs, HaveTimelines) {
  World::threads(
      2,
      [&](World& world) {
        SmallTrainer training(world, {.options = {.zero_stage = 3, .graph = GraphMode::kOn}});
        training.engine().record_timelines();
        double last_began = 0;
        for (int step = 0; step < 9; ++step) {
          training.step(step);
          double began = 0;
          const Timeline timeline = training.engine().timeline(&began);
          if (step < 2) continue;
          ASSERT_EQ(timeline.operations.size(), training.engine().plan().schedule.operations.size());
          EXPECT_GT(began, last_began) << step;
          last_began = began;
          EXPECT_GT(timeline.step_seconds, 0);
          for (const TimeSpan& span : timeline.operations) {
            EXPECT_GE(span.seconds(), 0) << step;
            EXPECT_LT(std::abs(span.start_seconds), 60) << step;  // not the time of an earlier step
          }
        }
        EXPECT_EQ(training.calls(), 4);  // without a graph in the first step, then a graph for each third step
      },
      gpus(2));
}

/// Several engines use one world by turns.
TEST_F(Graphs, AreSeparateForEachEngineOfAWorld) {
  std::array<TrainingResult, 2> alone, together;
  const auto settings_of = [](int engine) {
    return Settings{.options = {.zero_stage = engine == 0 ? 3 : 2, .graph = GraphMode::kOn}};
  };
  World::threads(
      2,
      [&](World& world) {
        for (int engine = 0; engine < 2; ++engine) {
          SmallTrainer training(world, settings_of(engine));
          for (int step = 0; step < kSteps; ++step) training.step(step);
          const TrainingResult own = training.finish();
          if (world.rank() == 0) alone[static_cast<std::size_t>(engine)] = own;
        }
        SmallTrainer first(world, settings_of(0)), second(world, settings_of(1));
        for (int step = 0; step < kSteps; ++step) first.step(step), second.step(step);
        const TrainingResult own_first = first.finish(), own_second = second.finish();
        if (world.rank() == 0) together = {own_first, own_second};
      },
      gpus(2));
  EXPECT_TRUE(together == alone);
}

}  // namespace
}  // namespace aliquot
