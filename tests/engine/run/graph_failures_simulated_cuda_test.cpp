// Tests of Engine::run_passes() on simulated GPUs: refusals, abandoned steps, and ranks that fail.
#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/system/error.h"
#include "tests/engine/run/graph_training.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// A rank that abandons a step must still take part in the graph of the others.
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

/// When a collective fails during a capture, the capture must end before the communicator is aborted: ncclCommAbort()
/// waits for it.
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

/// While the passes are captured, their work does not run. A wait for it would never end.
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
