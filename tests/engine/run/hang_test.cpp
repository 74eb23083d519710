// Tests of steps in which one rank stalls. The other ranks stop at the deadline, name this rank and report their own
// position.
#include <chrono>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "kernels/system/log.h"
#include "tests/engine/blocks_training.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Outcome {
  std::string error, log;
  double seconds;
};

/// Runs two steps with a deadline of 0.5 s. Rank 1 sleeps for 1.5 s before the second step.
Outcome hang(int stage, int ranks) {
  set_log_sink(log_to_standard_error);
  testing::internal::CaptureStderr();
  const auto began = std::chrono::steady_clock::now();
  Outcome outcome;
  try {
    World::threads(ranks,
                   [&](World& world) {
                     SmallModel model;
                     Engine engine(world,
                                   {.zero_stage = stage, .gather = stage == 3 ? GatherMode::kCopy : GatherMode::kAuto});
                     declare(engine, model);
                     train_micro_batch(engine, model, 0, 0, world.rank());
                     EXPECT_FALSE(engine.step().skipped);
                     if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                     train_micro_batch(engine, model, 1, 0, world.rank());
                     EXPECT_FALSE(engine.step().skipped);
                   },
                   {.device = DeviceChoice::kHost, .timeout_seconds = 0.5});
  } catch (const CommunicationError& error) {
    outcome.error = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  outcome.log = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Hang, EndsAtTheDeadlineWithThePositionOfEveryRank) {
  for (const int stage : {0, 3}) {
    const Outcome outcome = hang(stage, 3);
    EXPECT_NE(outcome.error.find("rank 1"), std::string::npos) << outcome.error;
    EXPECT_LT(outcome.seconds, 3);
    EXPECT_NE(outcome.log.find("aliquot: rank 0 was at "), std::string::npos) << outcome.log;
    EXPECT_NE(outcome.log.find("aliquot: rank 2 was at "), std::string::npos) << outcome.log;
    EXPECT_NE(outcome.log.find("step 2)"), std::string::npos) << outcome.log;
  }
}

/// Runs two steps on `stages` pipeline stages of one rank each. Rank `stalls` sleeps before the second step. Returns
/// the error message.
std::string error_of_stalled_stage(PipelineSchedule schedule, int stages, int stalls) {
  const auto body = [&](World& world) {
    EngineWithBlocks setup(
        world,
        {.accumulate = 4, .pipeline = stages, .pipeline_schedule = schedule, .pipeline_cut = cut_of(stages, false)});
    for (int step = 0; step < 2; ++step) {
      if (step == 1 && world.rank() == stalls) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
      run_step(setup, step);
      EXPECT_FALSE(setup.engine.step().skipped);
    }
  };
  try {
    World::threads(stages, body, {.device = DeviceChoice::kHost, .timeout_seconds = 0.3});
  } catch (const CommunicationError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// The error names the pipeline stages and the micro-batch of a transfer that waits.
TEST(Hang, OfAPipelineStageNamesTheTransfer) {
  for (const int stalls : {0, 1}) {
    const std::string error = error_of_stalled_stage(PipelineSchedule::k1F1B, 2, stalls);
    // Two transfers of different lanes wait from about the same time on.
    EXPECT_THAT(error, testing::ContainsRegex("pipeline stage [01] to [01], m0, h\\.1, step 2")) << error;
    EXPECT_NE(error.find(fmt::format("rank {} never arrived", stalls)), std::string::npos) << error;
  }
  const std::string error = error_of_stalled_stage(PipelineSchedule::kGpipe, 4, 1);
  EXPECT_THAT(error, testing::ContainsRegex("pipeline stage [0-3] to [0-3], m[0-3], h\\.[0-4], step 2")) << error;
  EXPECT_NE(error.find("never arrived"), std::string::npos) << error;
}

}  // namespace
}  // namespace aliquot
