// Tests of Engine::run_passes() on simulated GPUs, which run captured work as a real GPU does.
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"
#include "tests/engine/blocks_training.h"
#include "tests/engine/model_code.h"
#include "tests/engine/split_blocks.h"
#include "tests/support/scoped_ranks_per_node.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Enqueues model code as kernels while it exists.
class CodeIsKernels {
 public:
  CodeIsKernels() {
    enqueue_code = [](Stream& compute, std::function<void()> code) {
      simulated::launch(cuda_stream(compute), std::move(code));
    };
  }
  ~CodeIsKernels() { enqueue_code = before_; }
  CodeIsKernels(const CodeIsKernels&) = delete;
  CodeIsKernels& operator=(const CodeIsKernels&) = delete;

 private:
  EnqueueCode before_ = enqueue_code;
};

class Graphs : public testing::Test {
  CodeIsKernels code_is_kernels_;
};

WorldOptions gpus(int ranks) {
  return {.device = DeviceChoice::kCuda,
          .kind = ranks == 1 ? WorldChoice::kThreads : WorldChoice::kNccl,
          .timeout_seconds = 60};
}

constexpr int kSteps = 5;

/// What training produced, and how it ran.
struct TrainingResult {
  Outcome outcome;
  int calls = 0;  // of the function of run_passes(), on rank 0

  friend bool operator==(const TrainingResult&, const TrainingResult&) = default;
};

/// Trains the small model. Its samples differ in each step, and are at fixed addresses.
class SmallTrainer {
 public:
  SmallTrainer(World& world, const Settings& settings) : world_(world), setup_(world, settings) {
    samples_.resize(static_cast<std::size_t>(settings.options.accumulate));
    losses_.resize(samples_.size());
  }

  void step(int64_t number) {
    auto& [model, engine] = setup_;
    engine.compute_stream().synchronize();  // the samples may be read until then
    for (std::size_t m = 0; m < samples_.size(); ++m) samples_[m] = samples(number, static_cast<int>(m), world_.rank());
    engine.run_passes([&] { passes(); });
    engine.compute_stream().synchronize();
    double loss = 0;
    for (const double one : losses_) loss += one;
    const StepReport report = engine.step();
    if (sums_losses) world_.sum({&loss, 1});
    run_.outcome.losses.push_back(loss);
    run_.outcome.norms.push_back(report.skipped ? 0 : report.gradient_norm);
  }

  TrainingResult finish() {
    run_.outcome.parameters = read_all(setup_.engine);
    return run_;
  }
  /// Finishes a step that an exception has left.
  void abandoned_step() {
    const StepReport report = setup_.engine.step();
    EXPECT_TRUE(report.skipped);
    double loss = 0;
    world_.sum({&loss, 1});
    run_.outcome.losses.push_back(loss);
    run_.outcome.norms.push_back(0);
  }
  Engine& engine() { return setup_.engine; }
  SmallModel& model() { return setup_.model; }
  int calls() const { return run_.calls; }

  /// Called before each use, if it is set.
  std::function<void(const Work&)> before_use;
  std::atomic<bool> poison = false;  // makes gradients NaN
  bool sums_losses = true;           // over ranks, which waits for earlier collectives

 private:
  void passes() {
    auto& [model, engine] = setup_;
    ++run_.calls;
    const auto scale = static_cast<float>(engine.loss_scale());
    while (const auto work = engine.next()) {
      if (before_use) before_use(*work);
      const int use = work->use;
      const auto m = static_cast<std::size_t>(work->micro_batch);
      if (work->kind == UseKind::kForward) {
        enqueue_code(engine.compute_stream(), [this, m, use, values = model.value] {
          setup_.model.forward(use, samples_[m], values);
          losses_[m] = setup_.model.loss();
        });
      } else {
        enqueue_code(engine.compute_stream(), [this, use, scale, values = model.value, gradients = model.gradient] {
          setup_.model.backward(use, poison ? std::nanf("") : scale, values, gradients);
        });
      }
    }
  }

  World& world_;
  std::vector<std::vector<float>> samples_;
  std::vector<double> losses_;
  TrainingResult run_;
  EngineWithModel setup_;  // last: its destructor waits for work that uses the other members
};

/// Trains kSteps steps on each rank, and returns the run of rank 0.
TrainingResult train_small(int ranks, Settings settings, GraphMode graph) {
  settings.options.graph = graph;
  TrainingResult run;
  World::threads(
      ranks,
      [&](World& world) {
        SmallTrainer training(world, settings);
        for (int step = 0; step < kSteps; ++step) training.step(step);
        const TrainingResult own = training.finish();
        if (world.rank() == 0) run = own;
      },
      gpus(ranks));
  return run;
}

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

/// With slow streams, a graph would begin before the updates of the previous step have ended, and later operations
/// before the graph has ended, if nothing waited for them.
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

struct BlocksRun {
  std::vector<double> losses, norms;
  std::vector<float> parameters;
  friend bool operator==(const BlocksRun&, const BlocksRun&) = default;
};

/// Trains a model with several pipeline stages. The samples are the same in each step.
BlocksRun train_pipeline(int ranks, EngineOptions options, GraphMode graph) {
  options.graph = graph;
  BlocksRun run;
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithBlocks setup(world, options);
        auto& [blocks, engine] = setup;
        const double own_sample = 0.01 * (world.rank() % (ranks / options.pipeline));
        BlocksRun own;
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
        for (int i = 0; i < blocks.unit_count(); ++i) {
          for (const char* name : {"a", "b"}) {
            const auto full = engine.read(fmt::format("h.{}.{}", i, name));
            own.parameters.insert(own.parameters.end(), full.begin(), full.end());
          }
        }
        if (world.rank() == ranks - 1) run = own;
      },
      gpus(ranks));
  return run;
}

TEST_F(Graphs, IncludeTransfersBetweenPipelineStages) {
  EngineOptions options{.zero_stage = 3, .accumulate = 4, .accumulate_into = AccumulateInto::kShard, .recompute = 1};
  for_schedules(options, 2, false, [](const EngineOptions& pipelined) {
    const BlocksRun without = train_pipeline(4, pipelined, GraphMode::kOff);
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
            for (const std::string& name : SplitBlocks::names()) {
              const auto full = engine.read(name);
              own.parameters.insert(own.parameters.end(), full.begin(), full.end());
            }
            if (world.rank() == 0) runs[with_graph ? 1 : 0] = own;
          },
          gpus(4));
    }
    EXPECT_TRUE(runs[0] == runs[1]) << "ZeRO stage " << zero_stage;
  }
}

/// Trains on two ranks. `on_rank_1` runs before each step on rank 1, and may throw.
TrainingResult train_with(Settings settings, GraphMode graph,
                          const std::function<void(SmallTrainer& training, int step)>& on_rank_1) {
  settings.options.graph = graph;
  settings.options.tell_skipped = false;
  TrainingResult run;
  World::threads(
      2,
      [&](World& world) {
        SmallTrainer training(world, settings);
        for (int step = 0; step < kSteps + 2; ++step) {
          if (world.rank() == 1) on_rank_1(training, step);
          try {
            training.step(step);
          } catch (const std::runtime_error& error) {
            EXPECT_EQ(world.rank(), 1) << error.what();
            training.abandoned_step();
          }
        }
        const TrainingResult own = training.finish();
        if (world.rank() == 0) run = own;
      },
      gpus(2));
  return run;
}

/// The other ranks capture or launch a graph with the collectives of the step, and the rank that abandons it does too.
TEST_F(Graphs, AreCompletedByARankThatAbandonsTheStep) {
  const Settings settings{.options = {.zero_stage = 3, .accumulate = 2}};
  for (const int failing_step : {0, 1, 2, 4}) {
    for (const bool in_passes : {false, true}) {
      const auto fails = [&](SmallTrainer& training, int step) {
        training.before_use = {};
        if (step != failing_step) return;
        if (!in_passes) return training.engine().abandon();
        training.before_use = [](const Work& work) {
          if (work.micro_batch == 1 && work.kind == UseKind::kBackward) throw std::runtime_error("injected failure");
        };
      };
      const TrainingResult without = train_with(settings, GraphMode::kOff, fails);
      const TrainingResult with = train_with(settings, GraphMode::kOn, fails);
      // A graph does not call the function that throws.
      if (in_passes && failing_step > 1) continue;
      EXPECT_TRUE(with.outcome.parameters == without.outcome.parameters) << failing_step << in_passes;
      EXPECT_TRUE(with.outcome.norms == without.outcome.norms) << failing_step << in_passes;
      EXPECT_EQ(with.calls, failing_step <= 1 ? 3 : 2);  // step 1 or the capture is repeated
    }
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

/// A rank may search for a gradient that is not finite only in some steps, so these have no graph.
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

/// The failure of a collective in a capture must end the capture, because NCCL's abort waits for captures.
TEST_F(Graphs, FailWhenARankIsLateInACapture) {
  WorldOptions options = gpus(2);
  options.timeout_seconds = 2;
  std::string message;
  try {
    World::threads(
        2,
        [](World& world) {
          SmallTrainer training(world, {.options = {.zero_stage = 3, .graph = GraphMode::kOn}});
          training.step(0);
          if (world.rank() == 1) {
            training.before_use = [](const Work& work) {
              if (work.use == 0 && work.kind == UseKind::kBackward)
                std::this_thread::sleep_for(std::chrono::seconds(5));
            };
          }
          training.step(1);
        },
        options);
  } catch (const CommunicationError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find(" waited 2 s in "), std::string::npos) << message;
}

std::string refusal(int ranks, EngineOptions options, const WorldOptions& world) {
  options.graph = GraphMode::kOn;
  std::string message;
  try {
    World::threads(
        ranks, [&](World& rank) { SmallTrainer training(rank, {.options = options}); }, world);
  } catch (const UsageError& error) {
    message = error.what();
  }
  return message;
}

TEST_F(Graphs, AreRefusedWithTheReason) {
  const auto expect = [](const std::string& message, const std::string& reason) {
    EXPECT_EQ(message, "EngineOptions::graph is on, but the passes of rank 0 cannot be captured: " + reason);
  };
  expect(refusal(1, {}, kHosts), "this rank computes on a host");
  const WorldOptions shared{.device = DeviceChoice::kCuda, .kind = WorldChoice::kThreads, .timeout_seconds = 60};
  expect(refusal(2, {}, shared), "ranks share a GPU or read one another's memory");
  expect(refusal(2, {.update_in_backward = true, .clip = 0}, gpus(2)),
         "update_in_backward updates parameters during the passes");
  expect(refusal(2, {.replay_every = 2}, gpus(2)), "replay_every adds work to some steps only");
  World::threads(
      1,
      [&](World& world) {
        Engine engine(world, {.graph = GraphMode::kOn});
        SmallModel model;
        engine.compute_on(wrap_cuda_stream(world.device(), Lane::kCompute, nullptr));
        try {
          declare(engine, model);
          FAIL() << "the default stream was accepted";
        } catch (const UsageError& error) {
          expect(error.what(), "the compute stream is CUDA's default stream, which cannot be captured");
        }
      },
      gpus(1));
  expect(refusal(1, {.check_state = true}, gpus(1)), "check_state compares digests of each step");
  expect(refusal(1, {.check = true}, gpus(1)), "the checking mode runs host code during the passes");
}

TEST_F(Graphs, AreUsedByDefaultOnOneRankWhereTheyArePossible) {
  EXPECT_EQ(train_small(1, {.options = {.zero_stage = 3}}, GraphMode::kAuto).calls, 2);
  EXPECT_EQ(train_small(1, {.options = {.zero_stage = 3, .check_state = true}}, GraphMode::kAuto).calls, kSteps);
  EXPECT_EQ(train_small(2, {.options = {.zero_stage = 3}}, GraphMode::kAuto).calls, kSteps);
}

TEST_F(Graphs, RefuseCallsInTheWrongOrder) {
  World::threads(
      1,
      [](World& world) {
        SmallTrainer training(world, {.options = {.tell_skipped = false, .graph = GraphMode::kOn}});
        Engine& engine = training.engine();
        for (int step = 0; step < 2; ++step) {                 // the second one captures
          EXPECT_THROW(engine.run_passes([] {}), UsageError);  // the function runs no use
          EXPECT_TRUE(engine.step().skipped);
        }
        training.step(2);
        engine.next().reset();
        EXPECT_THROW(engine.run_passes([] {}), UsageError);
      },
      gpus(1));
}

/// Waiting for the device would wait for work that does not run yet.
TEST_F(Graphs, RefuseHostWorkAndWaitsInCapturedPasses) {
  for (const bool waits : {false, true}) {
    World::threads(
        1,
        [&](World& world) {
          SmallTrainer training(world, {.options = {.tell_skipped = false, .graph = GraphMode::kOn}});
          training.step(0);
          training.before_use = [&](const Work&) {
            Stream& compute = training.engine().compute_stream();
            if (waits) return compute.synchronize();
            compute.run([] {});
          };
          EXPECT_ANY_THROW(training.step(1));
          EXPECT_TRUE(training.engine().step().skipped);
          training.before_use = {};
          training.step(2);
        },
        gpus(1));
  }
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

/// Model code that allocates memory when it first runs must not run for the first time in a capture.
TEST_F(Graphs, BeginAfterAStepThatNoRankAbandoned) {
  const Settings settings{.options = {.zero_stage = 3}};
  const auto fails_at_first = [](SmallTrainer& training, int step) {
    if (step < 2) training.engine().abandon();
  };
  const TrainingResult without = train_with(settings, GraphMode::kOff, fails_at_first);
  const TrainingResult with = train_with(settings, GraphMode::kOn, fails_at_first);
  EXPECT_TRUE(with.outcome == without.outcome);
  EXPECT_EQ(with.calls, 4);  // two abandoned steps, a complete one, and the capture
}

TEST_F(Graphs, AllowTheSumOfLossesOfAnAbandonedStep) {
  World::threads(
      2,
      [](World& world) {
        SmallTrainer training(world, {.options = {.zero_stage = 3, .tell_skipped = false, .graph = GraphMode::kOn}});
        for (int step = 0; step < 3; ++step) training.step(step);
        Engine& engine = training.engine();
        if (world.rank() == 1) {
          engine.abandon();
        } else {
          engine.run_passes([] {});
        }
        std::array loss{1.0};
        engine.sum_losses(loss);
        EXPECT_EQ(loss[0], 2.0);
        EXPECT_EQ(engine.step().abandoned_by, 1);
        training.step(4);
      },
      gpus(2));
}

/// An open scope would be closed after the capture.
TEST_F(Graphs, RefuseAScopeThatStaysOpen) {
  World::threads(
      1,
      [](World& world) {
        SmallTrainer training(world, {.options = {.graph = GraphMode::kOn}});
        training.step(0);
        std::optional<Work> open;
        EXPECT_THROW(training.engine().run_passes([&] { open.emplace(*training.engine().next()); }), UsageError);
        open.reset();
        EXPECT_THROW((void)training.engine().step(), FaultError);  // the engine cannot be used
      },
      gpus(1));
}

/// A graph has collectives of several communicators, and all wait for the rank that is late. On one node, ranks compare
/// their launches. On several, the watchdog of NCCL detects the late rank.
TEST_F(Graphs, FailWhenARankDoesNotLaunchThem) {
  for (const int ranks_per_node : {4, 1}) {
    const test::ScopedRanksPerNode nodes(ranks_per_node);
    WorldOptions options = gpus(4);
    options.timeout_seconds = 2;
    std::string message;
    try {
      World::threads(
          4,
          [&](World& world) {
            SmallTrainer training(world, {.options = {.zero_stage = 3, .replicas = 2, .graph = GraphMode::kOn}});
            for (int step = 0; step < 3; ++step) training.step(step);
            if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
            training.step(3);
          },
          options);
    } catch (const CommunicationError& error) {
      message = error.what();
    }
    const bool compares = ranks_per_node == 4;
    EXPECT_NE(message.find(compares ? " waited 2 s in graph #" : " waited 2 s for the GPU to complete graph #"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("(passes, step 4)"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace aliquot
